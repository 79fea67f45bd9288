// Text to tokens and back, as the target's own vocabulary has it.

#include "common.h"

#include "llama.h"

const llama_vocab * ee_target_vocab(const ee_target * target); // target.cpp

namespace {

// llama.cpp answers a buffer that is too small with the negated size it needs.
void deliver(int32_t n, int32_t max_out, int32_t * n_out) {
    *n_out = n < 0 ? -n : n;
    if (n < 0) {
        ee::fail(EE_ERR_MEMORY, "the output needs %d elements, it has %d", *n_out, max_out);
    }
}

} // namespace

ee_status ee_tokenize(const ee_target * target, const char * text, int32_t text_len, int32_t add_special, int32_t parse_special, int32_t * out, int32_t max_out, int32_t * n_out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        deliver(llama_tokenize(ee_target_vocab(target), text, text_len, out, max_out, add_special != 0, parse_special != 0), max_out, n_out);
    });
}

ee_status ee_token_piece(const ee_target * target, int32_t token, int32_t special, char * out, int32_t max_out, int32_t * n_out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        const llama_vocab * vocab = ee_target_vocab(target);
        if (token < 0 || token >= llama_vocab_n_tokens(vocab)) {
            ee::fail(EE_ERR_ARG, "token %d is outside the vocabulary of %d", token, llama_vocab_n_tokens(vocab));
        }
        deliver(llama_token_to_piece(vocab, token, out, max_out, 0, special != 0), max_out, n_out);
    });
}

int32_t ee_token_is_end(const ee_target * target, int32_t token) {
    return llama_vocab_is_eog(ee_target_vocab(target), token);
}

int32_t ee_token_bos(const ee_target * target) {
    return llama_vocab_bos(ee_target_vocab(target));
}

int32_t ee_token_eos(const ee_target * target) {
    return llama_vocab_eos(ee_target_vocab(target));
}

int32_t ee_adds_bos(const ee_target * target) {
    return llama_vocab_get_add_bos(ee_target_vocab(target));
}

uintptr_t ee_vocab_address(const ee_target * target) {
    return (uintptr_t) ee_target_vocab(target);
}
