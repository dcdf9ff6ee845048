// jit/tile_llvm.c: tiles of pointwise kernels whose accesses stride along the vector dim.
//
// A turned access (jit/kernel.h) has unit stride along the dim before: blocks of rows and columns are transposed
// between its memory and a buffer, in which rows lie as the body wants them. Rows of a tile differ in the last of their
// coordinates only; tiles of few rows are the longer.
#include "../lib/base.h"
#include "loop_llvm.h"

enum {
    TILE_ROWS = 16,
    TILE_COLS = 16,
    LINE = 64,       // bytes of a cache line: a tile's rows for elements of one byte
    TURN_COLS = 128, // columns of a tile with all its rows
};

// A load that strides along the vector dim touches a cache line an element; in tiles, the rows of a tile use it up.
bool tj_l_wants_tiles(const struct gen *g) {
    bool strided = false;
    for (unsigned i = 0; i < g->k->nins; i++) {
        const struct tj_kins *s = &g->k->ins[i];
        bool turned = tj_l_has_access(s->op) && g->acc[s->imm].turned;
        strided = strided || turned ||
                  (s->op == TJ_KOP_LOAD && g->needed[i] && g->place[i] == AT_BODY &&
                   g->k->access[s->imm].stride[g->vdim] > 1);
    }
    return strided && g->k->kind == TJ_K_POINTWISE && g->k->ndims > 1;
}

tj_lv tj_l_tile_at(struct gen *g, unsigned a) {
    struct tj_emit *e = g->e;
    tj_lv row = LLVMBuildSub(e->b, g->row, g->tile_row, "");
    tj_lv off = LLVMBuildSub(e->b, LLVMBuildMul(e->b, row, g->tile_stride, ""), g->tile_col, "");
    return tj_e_gep(e, tj_e_memory_type(e, g->k->access[a].dtype), g->acc[a].tile, off);
}

// Calls one of the four helpers from `first` on (kernels/transpose.h).
static void call_turn(struct gen *g, int first, uint8_t dtype, tj_lv *args) {
    struct tj_emit *e = g->e;
    tj_lt params[] = {e->ptr, e->i64, e->ptr, e->i64, e->i64, e->i64};
    tj_lv table = tj_e_load(e, e->ptr, tj_e_gep(e, e->i8, g->args, tj_e_i64(e, offsetof(struct tj_kargs, helpers))), 8);
    size_t bytes = tj_elem_bytes((tj_dtype)dtype);
    first += bytes == 8 ? 3 : bytes == 4 ? 2 : bytes == 2 ? 1 : 0;
    tj_lv f = tj_e_load(e, e->ptr, tj_e_gep(e, e->ptr, table, tj_e_i64(e, first)), 8);
    (void)LLVMBuildCall2(e->b, LLVMFunctionType(e->none, params, 6, 0), f, args, 6, "");
}

// Transposes the tile of an access: `at` is its first element in memory.
static void turn(struct gen *g, unsigned a, tj_lv at, bool in, tj_lv rows, tj_lv cols) {
    struct tj_emit *e = g->e;
    const struct tj_kaccess *s = &g->k->access[a];
    tj_lv stride = tj_l_ival(g, s->stride[g->vdim]), tile = g->acc[a].tile;
    at = tj_e_gep(e, tj_e_memory_type(e, s->dtype), at, LLVMBuildMul(e->b, g->tile_col, stride, ""));
    tj_lv from_memory[] = {tile, g->tile_stride, at, stride, cols, rows};
    tj_lv to_memory[] = {at, stride, tile, g->tile_stride, rows, cols};
    call_turn(g, TJ_H_TURN, s->dtype, in ? from_memory : to_memory);
}

// Transposes the tiles of all that the kernel loads, or stores.
static void turn_all(struct gen *g, tj_lv const *at, bool in, tj_lv rows, tj_lv cols) {
    bool done[TJ_TURNED_MAX] = {0};
    for (unsigned i = 0; i < g->k->nins; i++) {
        const struct tj_kins *s = &g->k->ins[i];
        if (!g->needed[i] || s->op != (in ? TJ_KOP_LOAD : TJ_KOP_STORE) || !g->acc[s->imm].turned) {
            continue;
        }
        unsigned n = 0;
        for (unsigned a = 0; a < (unsigned)s->imm; a++) {
            n += g->acc[a].turned;
        }
        if (!done[n]) {
            done[n] = true;
            turn(g, (unsigned)s->imm, at[n], in, rows, cols);
        }
    }
}

// A kernel that only moves elements between memory of which one side is turned, the other one lies in rows: it is the
// call of one function.
static bool only_moves(const struct gen *g) {
    const struct tj_kernel *k = g->k;
    if (k->nins != 2 || k->ins[0].op != TJ_KOP_LOAD || k->ins[1].op != TJ_KOP_STORE) {
        return false;
    }
    const struct tj_kaccess *from = &k->access[k->ins[0].imm], *to = &k->access[k->ins[1].imm];
    bool in = g->acc[k->ins[0].imm].turned, out = g->acc[k->ins[1].imm].turned;
    return from->dtype == to->dtype && from->dtype != TRACE_BOOL && in != out &&
           (in ? to : from)->stride[g->vdim] == 1 && !(in ? to : from)->nindirect;
}

// Rows [r, end), which differ in the last of their coordinates only.
static void move_rows(struct gen *g, tj_lv r, tj_lv end, tj_lv col0, tj_lv col1) {
    struct tj_emit *e = g->e;
    unsigned la = (unsigned)g->k->ins[0].imm, sa = (unsigned)g->k->ins[1].imm;
    const struct tj_kaccess *from = &g->k->access[la], *to = &g->k->access[sa];
    bool in = g->acc[la].turned;
    tj_lt m = tj_e_memory_type(e, from->dtype);
    tj_lv src = tj_l_base(g, la, AT_ROW), dst = tj_l_base(g, sa, AT_ROW);
    tj_lv ss = tj_l_ival(g, from->stride[in ? g->vdim : g->nrow - 1]);
    tj_lv ds = tj_l_ival(g, to->stride[in ? g->nrow - 1 : g->vdim]);
    src = tj_e_gep(e, m, src, in ? LLVMBuildMul(e->b, col0, ss, "") : col0);
    dst = tj_e_gep(e, m, dst, in ? col0 : LLVMBuildMul(e->b, col0, ds, ""));
    tj_lv rows = LLVMBuildSub(e->b, end, r, ""), cols = LLVMBuildSub(e->b, col1, col0, "");
    tj_lv args[] = {dst, ds, src, ss, in ? cols : rows, in ? rows : cols};
    call_turn(g, TJ_H_TURN_ALL, from->dtype, args);
}

// Rows [r, end) of the tile, all columns.
static void turned_rows(struct gen *g, tj_lv r, tj_lv end, unsigned most, tj_lv col0, tj_lv col1) {
    struct tj_emit *e = g->e;
    tj_lv at[TJ_TURNED_MAX];
    tj_lv n = LLVMBuildSub(e->b, end, r, "");
    for (unsigned a = 0, t = 0; a < g->k->naccess; a++) {
        if (g->acc[a].turned) {
            at[t++] = tj_l_base(g, a, AT_ROW);
        }
    }
    tj_lv width = LLVMBuildUDiv(e->b, tj_e_i64(e, (int64_t)most * TURN_COLS), n, "");
    width = LLVMBuildAnd(e->b, width, tj_e_i64(e, -64), "");
    struct tj_loop_state c;
    tj_e_loop(e, &c, col0, col1, width, "turned_columns");
    g->row0 = g->tile_row = r;
    g->row1 = end;
    g->col0 = g->tile_col = c.i;
    g->col1 = tj_e_binary(e, "llvm.smin", LLVMBuildAdd(e->b, c.i, width, ""), col1);
    g->tile_stride = width;
    tj_lv cols = LLVMBuildSub(e->b, g->col1, c.i, "");
    turn_all(g, at, true, n, cols);
    tj_l_rows(g);
    turn_all(g, at, false, n, cols);
    tj_e_loop_end(e, &c);
}

static void turned_tiles(struct gen *g, unsigned most) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    tj_lv row0 = g->row0, row1 = g->row1, col0 = g->col0, col1 = g->col1;
    bool moves = only_moves(g);
    for (unsigned a = 0; a < g->k->naccess; a++) {
        if (g->acc[a].turned && !moves) {
            tj_lt t = LLVMArrayType(tj_e_memory_type(e, g->k->access[a].dtype), most * TURN_COLS);
            g->acc[a].tile = tj_e_alloca(e, t, 64, "tile");
        }
    }
    tj_lb pre = tj_e_here(e), head = tj_e_block(e, "turned_rows"), exit = tj_e_block(e, "turned");
    LLVMBuildBr(w, head);
    tj_e_at(e, head);
    tj_lv r = LLVMBuildPhi(w, e->i64, "");
    tj_l_coords(g, r);
    unsigned last = g->nrow - 1;
    tj_lv left = LLVMBuildSub(w, tj_l_ival(g, g->k->extent[last]), g->coord[last], "");
    tj_lv end = tj_e_binary(e, "llvm.smin", LLVMBuildAdd(w, r, left, ""), row1);
    if (moves) {
        move_rows(g, r, end, col0, col1);
    } else {
        end = tj_e_binary(e, "llvm.smin", LLVMBuildAdd(w, r, tj_e_i64(e, most), ""), end);
        turned_rows(g, r, end, most, col0, col1);
    }
    tj_lb latch = tj_e_here(e);
    LLVMAddIncoming(r, (tj_lv[]){row0, end}, (tj_lb[]){pre, latch}, 2);
    LLVMBuildCondBr(w, LLVMBuildICmp(w, LLVMIntSLT, end, row1, ""), head, exit);
    tj_e_at(e, exit);
}

void tj_l_tiles(struct gen *g) {
    struct tj_emit *e = g->e;
    size_t bytes = 0;
    for (unsigned a = 0; a < g->k->naccess; a++) {
        size_t own = tj_elem_bytes((tj_dtype)g->k->access[a].dtype);
        bytes = g->acc[a].turned && own > bytes ? own : bytes;
    }
    if (bytes) {
        turned_tiles(g, LINE / (unsigned)bytes);
        return;
    }
    tj_lv row0 = g->row0, row1 = g->row1, col0 = g->col0, col1 = g->col1;
    struct tj_loop_state r, c;
    tj_e_loop(e, &r, row0, row1, tj_e_i64(e, TILE_ROWS), "tile_rows");
    tj_lv end = tj_e_binary(e, "llvm.smin", LLVMBuildAdd(e->b, r.i, tj_e_i64(e, TILE_ROWS), ""), row1);
    tj_e_loop(e, &c, col0, col1, tj_e_i64(e, TILE_COLS), "tile_columns");
    g->row0 = r.i;
    g->row1 = end;
    g->col0 = c.i;
    g->col1 = tj_e_binary(e, "llvm.smin", LLVMBuildAdd(e->b, c.i, tj_e_i64(e, TILE_COLS), ""), col1);
    tj_l_rows(g);
    tj_e_loop_end(e, &c);
    tj_e_loop_end(e, &r);
}
