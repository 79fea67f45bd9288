#ifndef EAGLE_EDGE_H
#define EAGLE_EDGE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "eagle_edge.cdef.h"
#ifdef __cplusplus
}
#endif
#endif
