#include "eagle_edge.h"
