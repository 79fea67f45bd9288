#include "common.h"

static ee_status absent(char * err, size_t err_len) {
    ee::write_error(err, err_len, "the draft is not built yet");
    return EE_ERR_BACKEND;
}
ee_status ee_draft_open(const char *, const char *, const ee_draft_params *, ee_draft **, char * err, size_t n) { return absent(err, n); }
void      ee_draft_free(ee_draft *) {}
void      ee_draft_get_info(const ee_draft *, ee_draft_info *) {}
ee_status ee_draft_vocab(const ee_draft *, int32_t *, char * err, size_t n) { return absent(err, n); }
ee_status ee_draft_extend(ee_draft *, const int32_t *, const float *, int32_t, int32_t, int32_t *, float *, char * err, size_t n) { return absent(err, n); }
ee_status ee_draft_level(ee_draft *, const int32_t *, const int32_t *, int32_t, int32_t, int32_t *, float *, char * err, size_t n) { return absent(err, n); }
ee_status ee_draft_logits(const ee_draft *, int32_t, float *, char * err, size_t n) { return absent(err, n); }
ee_status ee_draft_hidden(const ee_draft *, int32_t, float *, char * err, size_t n) { return absent(err, n); }
ee_status ee_draft_rewind(ee_draft *, int32_t, char * err, size_t n) { return absent(err, n); }
int32_t   ee_draft_n_pairs(const ee_draft *) { return 0; }
