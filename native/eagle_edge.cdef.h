/* Every declaration the compiler and cffi share. No #include and no #ifdef here: cffi reads this file too.
 *
 * Conventions. Handles are opaque. Outputs are arrays the caller allocates, row-major, and nothing points into them
 * after the call. Every fallible function returns an ee_status and ends in (char *err, size_t err_len), where it
 * writes one line of text on failure. A handle may be used by one thread at a time.
 *
 * Letters: N nodes, K taps, E target width, H head width, V vocabulary, R draft vocabulary. */

typedef enum {
    EE_OK          = 0,
    EE_ERR_ARG     = 1, /* the caller passed something impossible */
    EE_ERR_FILE    = 2, /* a file is missing, broken or of another kind */
    EE_ERR_MEMORY  = 3, /* no memory, or no room left in the cache */
    EE_ERR_BACKEND = 4, /* llama.cpp or ggml refused */
} ee_status;

/* How hidden states are read: from the graph's own layer inputs where the architecture fills them, otherwise by a
 * scheduler callback on the layer outputs. */
typedef enum {
    EE_TAPS_AUTO        = 0,
    EE_TAPS_LAYER_INPUT = 1,
    EE_TAPS_CALLBACK    = 2,
} ee_tap_route;

/* Which rows of an evaluation get logits. */
typedef enum {
    EE_LOGITS_NONE = 0,
    EE_LOGITS_LAST = 1,
    EE_LOGITS_ALL  = 2,
} ee_logits_rows;

typedef struct ee_target ee_target;
typedef struct ee_draft  ee_draft;

/* -- library ------------------------------------------------------------------------------------------------------ */

/* Silence llama.cpp and ggml (level 0) or pass their log on to stderr (level 1). Process-wide. */
void ee_log_level(int32_t level);
/* The version string of the llama.cpp libraries this process runs, owned by the library. */
const char * ee_system_info(void);

/* -- kernels ------------------------------------------------------------------------------------------------------ */

typedef enum {
    EE_KERNELS_AUTO      = 0, /* native where they can run, llama.cpp's elsewhere */
    EE_KERNELS_NATIVE    = 1, /* native, or an error */
    EE_KERNELS_LLAMA_CPP = 2, /* llama.cpp's, for models loaded from now on */
} ee_kernels_mode;

/* Try llama.cpp's AMX products in a child process and leave them out where they crash or are wrong, as they are when GCC
 * 12 compiled them; 1 if they were. Before the process loads its first model. */
int32_t ee_leave_out_broken_kernels(void);
/* Choose the CPU kernels of every model loaded after this call, and of attention. Native kernels have to be installed
 * before the process loads its first model. path: NULL for the best one, or avx512vnni, avxvnni, avx2, neon_i8mm,
 * neon_dot; all of them give the same bits. */
ee_status ee_kernels_install(ee_kernels_mode mode, const char * path, char * err, size_t err_len);
/* The path native kernels run on, "" when they do not. */
const char * ee_kernels_path(void);
/* Why they do not, in a few words; valid until the next installation. */
const char * ee_kernels_note(void);
/* 1 unless small pages of weights that were loaded lately are still being exchanged for large ones, in the background,
 * which makes evaluations faster when it is done. */
int32_t ee_weights_are_settled(void);

/* What n_threads can do here at most: bytes read from n_bytes of memory, and products of bytes by the instructions of the
 * path in use (0 without one). */
ee_status ee_measure_limits(int32_t n_threads, int64_t n_bytes, double * bytes_per_second, double * products_per_second,
                            char * err, size_t err_len);

/* -- target ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t n_ctx;           /* positions in the cache; 0 = the model's own context */
    int32_t n_batch;         /* most tokens of one evaluation, 1..4096 */
    int32_t n_ubatch;        /* most tokens of one graph, 1..n_batch */
    int32_t n_streams;       /* most nodes of a tree, streams, and rows with logits at once, 1..254 */
    int32_t n_threads;       /* >= 1 */
    int32_t n_gpu_layers;    /* 0 = none, -1 = all */
    int32_t type_k;          /* ggml_type of the K cache */
    int32_t type_v;          /* ggml_type of the V cache */
    int32_t flash_attn;      /* -1 automatic, 0 off, 1 on */
    int32_t repack;          /* 1 lets llama.cpp re-lay weights for its faster kernels, 0 forbids it */
    int32_t separate_streams; /* 1 gives every stream a cache of its own of n_ctx positions, for ee_target_eval_streams: attention costs no more than each stream's own text, and there are no trees */
    int32_t pair_single_row; /* 1 evaluates a lone row as two equal rows, so that it takes the kernels a tree takes */
    float * progress;        /* NULL, or a cell that load progress 0..1 is written to; must outlive the call */
    int32_t * cancel;        /* NULL, or a cell that stops the load when it becomes nonzero */
} ee_target_params;

typedef struct {
    int32_t n_vocab;
    int32_t n_embd;
    int32_t n_layer;
    int32_t n_ctx;
    int32_t n_ctx_train;
    int32_t layer_input_taps; /* 1: the architecture fills its layer inputs */
    int32_t can_branch;       /* 1: the cache can hold and drop branches (0: recurrent, hybrid) */
    int64_t n_params;
    int64_t model_bytes;
    int64_t cache_bytes;      /* the size of a full state of the cache */
} ee_target_info;

/* Load a model and make its context. On success *out owns both; free with ee_target_free. */
ee_status ee_target_open(const char * path, const ee_target_params * params, ee_target ** out, char * err, size_t err_len);
void      ee_target_free(ee_target * target);
void      ee_target_get_info(const ee_target * target, ee_target_info * out);

/* Use n_threads (1..512) from the next evaluation on. */
ee_status ee_target_set_threads(ee_target * target, int32_t n_threads, char * err, size_t err_len);

/* Choose the taps: boundaries[i] = b reads the residual stream entering layer b (0..n_layer; n_layer = after the last
 * layer, before the final norm; -1 = after the final norm). n = 0 stops tapping. K = n, at most 16. */
ee_status ee_target_set_taps(ee_target * target, const int32_t * boundaries, int32_t n, ee_tap_route route, char * err, size_t err_len);

/* Evaluate N nodes after the committed tokens. parents[i] < i; -1 hangs the node on the last committed token.
 * The results stay readable until the next evaluation; the nodes stay uncommitted until ee_target_commit. */
ee_status ee_target_eval(ee_target * target, const int32_t * tokens, const int32_t * parents, int32_t n, ee_logits_rows rows, char * err, size_t err_len);
/* Rows of the last evaluation's graph, blank ones included: small chains share one graph where the kernels can leave rows
 * out, because llama.cpp builds it anew whenever the number of rows changes. */
int32_t   ee_target_graph_rows(const ee_target * target);
/* *out [V]: the logits of one node of the last evaluation, until the next one. */
ee_status ee_target_logits(ee_target * target, int32_t node, float ** out, char * err, size_t err_len);
/* out [n, K*E]: the taps of the given nodes of the last evaluation. */
ee_status ee_target_taps(ee_target * target, const int32_t * nodes, int32_t n, float * out, char * err, size_t err_len);
/* Keep the root-to-leaf path of nodes (may be empty) and drop every other node of the last evaluation. */
ee_status ee_target_commit(ee_target * target, const int32_t * path, int32_t n, char * err, size_t err_len);
/* Forget committed tokens from position n_past on. */
ee_status ee_target_rewind(ee_target * target, int32_t n_past, char * err, size_t err_len);
/* Committed tokens. */
int32_t   ee_target_n_past(const ee_target * target);

/* Many independent sequences in one evaluation, for data generation (a target in this mode has no tree).
 * Token i is appended to stream[i] at the stream's end; rows as in ee_target_eval with every flagged row readable. */
ee_status ee_target_eval_streams(ee_target * target, const int32_t * tokens, const int32_t * streams, const int8_t * want_logits, int32_t n, char * err, size_t err_len);
/* Empty one stream (-1: all). */
ee_status ee_target_clear_stream(ee_target * target, int32_t stream, char * err, size_t err_len);
/* Continue the sequence of one stream in another, whose own is dropped. An evaluation is fastest when its streams are
 * neighbours: llama.cpp evaluates each run of consecutive streams by itself. */
ee_status ee_target_move_stream(ee_target * target, int32_t from, int32_t to, char * err, size_t err_len);

/* -- vocabulary --------------------------------------------------------------------------------------------------- */

/* *n_out tokens of text (UTF-8, text_len bytes) into out [max_out]. When max_out is too small: EE_ERR_MEMORY and *n_out
 * is the count needed. parse_special reads control tokens out of the text; add_special adds BOS/EOS as the model asks. */
ee_status ee_tokenize(const ee_target * target, const char * text, int32_t text_len, int32_t add_special, int32_t parse_special, int32_t * out, int32_t max_out, int32_t * n_out, char * err, size_t err_len);
/* *n_out bytes of one token's text into out [max_out], same rule. special 1 spells control tokens, 0 leaves them empty. */
ee_status ee_token_piece(const ee_target * target, int32_t token, int32_t special, char * out, int32_t max_out, int32_t * n_out, char * err, size_t err_len);
/* 1: the token ends generation. */
int32_t   ee_token_is_end(const ee_target * target, int32_t token);
/* The noise of the ids [n] under key [2] to single precision where it is large, for guesses. */
void      ee_noise_rough(const int32_t * ids, int32_t n, const uint32_t * key, float * out);
/* The index of the largest (scores - top) / temperature + noise of the ids under key [4]; NULL stands for ids 0..n-1. */
int32_t   ee_noise_argmax(const int32_t * ids, const float * scores, int32_t n, float top, float temperature, const uint32_t * key);
/* What top-k (0: any number), top-p (1: any share) and min-p (0: any), in this order, leave of n tokens: ids, ascending, and
 * scores (logits - top) / temperature, top being the largest logit; of equal ones the lowest ids. Banned ones (-inf) go.
 * ids, scores [top_k], or [n] where that is 0. Returns how many. */
int32_t   ee_filter(const float * logits, int32_t n, float top, float temperature, int32_t top_k, double top_p, double min_p, int32_t * ids, float * scores);
/* Ids or -1. */
int32_t   ee_token_bos(const ee_target * target);
int32_t   ee_token_eos(const ee_target * target);
/* 1: tokenize with add_special prepends BOS. */
int32_t   ee_adds_bos(const ee_target * target);
/* The address of the llama_vocab, for libraries that take one; it lives as long as the target. */
uintptr_t ee_vocab_address(const ee_target * target);

/* -- draft -------------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t n_ctx;        /* pairs the cache can hold */
    int32_t n_threads;
    int32_t max_nodes;    /* most tree nodes evaluated between two extensions */
    int32_t max_top_k;    /* most children asked of one row */
    int32_t n_gpu_layers; /* 0: the head runs on the CPU; otherwise on the first GPU that can run it */
} ee_draft_params;

typedef struct {
    int32_t n_embd;         /* H */
    int32_t n_embd_target;  /* E */
    int32_t n_taps;         /* K; the width of one row of taps is K*E */
    int32_t taps[16];       /* boundaries, see ee_target_set_taps */
    int32_t n_layer;
    int32_t n_vocab;        /* V */
    int32_t n_draft_vocab;  /* R */
    int32_t own_embedding;  /* 0: borrowed from the target file */
    int32_t own_output;     /* 0: borrowed from the target file */
    int64_t weight_bytes;
    int64_t cache_bytes;
} ee_draft_info;

/* Load a head and build its graphs on the backend that serves it. target_path is the target's file: the token
 * embedding or output matrix is read from it when the head has none. Free with ee_draft_free. */
ee_status ee_draft_open(const char * path, const char * target_path, const ee_draft_params * params, ee_draft ** out, char * err, size_t err_len);
void      ee_draft_free(ee_draft * draft);
void      ee_draft_get_info(const ee_draft * draft, ee_draft_info * out);
/* Use n_threads (1..512) from the next evaluation on. */
ee_status ee_draft_set_threads(ee_draft * draft, int32_t n_threads, char * err, size_t err_len);
/* out [R]: the target id of each draft id. */
ee_status ee_draft_vocab(const ee_draft * draft, int32_t * out, char * err, size_t err_len);

/* Commit m pairs (taps of position t, token at t+1) at the end of the cache and drop the tree of the last round.
 * Gives the top_k children of the last pair: ids [top_k] as target ids, logprobs [top_k], best first.
 * top_k may be 0. */
ee_status ee_draft_extend(ee_draft * draft, const int32_t * next_tokens, const float * taps, int32_t m, int32_t top_k, int32_t * ids, float * logprobs, char * err, size_t err_len);
/* Evaluate one level of n tree nodes. Nodes are numbered in the order they are evaluated since the last extension;
 * parents[i] is such a number, or -1 for a child of the last pair. ids, logprobs [n, top_k] as above. */
ee_status ee_draft_level(ee_draft * draft, const int32_t * tokens, const int32_t * parents, int32_t n, int32_t top_k, int32_t * ids, float * logprobs, char * err, size_t err_len);
/* From the next evaluation on, choose children by softmax(logits + noise) with noise [R], those last whose logits lie more
 * than reach below the largest one; NULL: by the logits alone. */
ee_status ee_draft_perturb(ee_draft * draft, const float * noise, float reach, char * err, size_t err_len);
/* out [R]: the logits of a node of this round (-1: of the last pair). */
ee_status ee_draft_logits(ee_draft * draft, int32_t node, float * out, char * err, size_t err_len);
/* out [H]: the state that would be fed back under a node of this round (-1: of the last pair). */
ee_status ee_draft_hidden(const ee_draft * draft, int32_t node, float * out, char * err, size_t err_len);
/* Forget pairs from position n_pairs on, and the tree. */
ee_status ee_draft_rewind(ee_draft * draft, int32_t n_pairs, char * err, size_t err_len);
int32_t   ee_draft_n_pairs(const ee_draft * draft);
