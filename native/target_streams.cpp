// Many independent sequences in one evaluation, for training data; a target in this mode has no tree.

#include "target.h"

ee_status ee_target_eval_streams(ee_target * target, const int32_t * tokens, const int32_t * streams, const int8_t * want_logits, int32_t n, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (n < 1 || n > t.params.n_batch) {
            ee::fail(EE_ERR_ARG, "an evaluation takes 1 to %d tokens, got %d", t.params.n_batch, n);
        }
        if (t.n_past > 0) {
            ee::fail(EE_ERR_ARG, "rewind the target to 0 before using streams");
        }
        t.stream_length.resize(t.params.n_streams, 0);
        t.batch->clear();
        t.has_logits.assign(n, false);
        std::vector<int32_t> length = t.stream_length;
        int32_t              n_rows = 0;
        for (int32_t i = 0; i < n; ++i) {
            ee::check_token(t, tokens[i], i);
            if (streams[i] < 0 || streams[i] >= t.params.n_streams) {
                ee::fail(EE_ERR_ARG, "stream %d is outside 0..%d", streams[i], t.params.n_streams - 1);
            }
            t.has_logits[i] = want_logits[i] != 0 || t.taps_need_outputs();
            n_rows += t.has_logits[i];
            if (t.params.separate_streams && length[streams[i]] >= t.info.n_ctx) {
                ee::fail(EE_ERR_MEMORY, "stream %d is full: it holds %d positions", streams[i], t.info.n_ctx);
            }
            t.batch->join(t.batch->add(tokens[i], length[streams[i]]++, t.has_logits[i]), streams[i]);
        }
        if (n_rows > t.params.n_streams) {
            ee::fail(EE_ERR_ARG, "at most %d rows of logits at once, got %d", t.params.n_streams, n_rows);
        }
        ee::decode(t);
        t.stream_length = length;
    });
}

ee_status ee_target_clear_stream(ee_target * target, int32_t stream, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (stream < -1 || stream >= t.params.n_streams) {
            ee::fail(EE_ERR_ARG, "stream %d is outside -1..%d", stream, t.params.n_streams - 1);
        }
        if (stream < 0) {
            llama_memory_clear(t.memory(), /*data =*/false);
            t.stream_length.clear();
        } else if (!t.stream_length.empty()) {
            llama_memory_seq_rm(t.memory(), stream, -1, -1);
            t.stream_length[stream] = 0;
        }
    });
}

ee_status ee_target_move_stream(ee_target * target, int32_t from, int32_t to, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        for (int32_t stream : { from, to }) {
            if (stream < 0 || stream >= t.params.n_streams) {
                ee::fail(EE_ERR_ARG, "stream %d is outside 0..%d", stream, t.params.n_streams - 1);
            }
        }
        if (from == to || t.stream_length.empty()) {
            return;
        }
        llama_memory_seq_rm(t.memory(), to, -1, -1);
        llama_memory_seq_cp(t.memory(), from, to, -1, -1); // copied before the next evaluation
        llama_memory_seq_rm(t.memory(), from, -1, -1);
        t.stream_length[to]   = t.stream_length[from];
        t.stream_length[from] = 0;
    });
}
