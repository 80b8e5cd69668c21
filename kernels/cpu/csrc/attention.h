// The arguments of an attention command, by name.
#pragma once
#include "command.h"

// T is computed with, C is what the caches hold.
template <class T, class C>
struct Attention {
  const T* q;
  const C *k_cache, *v_cache;
  const int32_t *block_table, *query_start_loc, *context_lens, *query_lens;
  const int32_t* block_offset;  // may be null: tables start at the first block
  T* out;
  int64_t rows, q_stride, requests, queries, table_width;
  int64_t num_blocks, block_size, heads, kv_heads, dim, tile_tokens, row_tile;
  int64_t task_heads;  // key/value heads per task
  int64_t window;      // tokens that a row sees; 0 for all
  float scale;         // of scores, in units of the cap if there is one
  float softcap;       // 0 for none
  float v_scale;       // of the values

  explicit Attention(const Arg* args)
      : q(pointer<const T>(args[0])),
        k_cache(pointer<const C>(args[1])),
        v_cache(pointer<const C>(args[2])),
        block_table(pointer<const int32_t>(args[3])),
        query_start_loc(pointer<const int32_t>(args[4])),
        context_lens(pointer<const int32_t>(args[5])),
        query_lens(pointer<const int32_t>(args[6])),
        block_offset(pointer<const int32_t>(args[22])),
        out(pointer<T>(args[7])),
        rows(args[8].i),
        q_stride(args[9].i),
        requests(args[10].i),
        queries(args[11].i),
        table_width(args[12].i),
        num_blocks(args[13].i),
        block_size(args[14].i),
        heads(args[15].i),
        kv_heads(args[16].i),
        dim(args[17].i),
        tile_tokens(args[18].i),
        row_tile(args[19].i),
        task_heads(args[21].i),
        window(args[23].i),
        scale(float(args[20].f)),
        softcap(float(args[24].f)),
        v_scale(float(args[25].f)) {}

  int64_t group() const { return heads / kv_heads; }

  // The request that owns a row, or -1. Decode rows are in request order, `queries` for each;
  // prefill rows are found by the requests' starts (few).
  int64_t request_of(int64_t row) const {
    if (!query_start_loc) return row % queries < query_lens[row / queries] ? row / queries : -1;
    for (int64_t p = 0; p < requests; ++p)
      if (row >= query_start_loc[p] && row < query_start_loc[p] + query_lens[p]) return p;
    return -1;
  }
  int64_t first_row(int64_t request) const {
    return query_start_loc ? query_start_loc[request] : request * queries;
  }
};
