// tests/test_names.c: a failed call is named as the host made it, once: composites too, whatever ops they are made of,
// and errors that only the data shows. In a region, an eager region, and outside regions; with the host's line and
// without.
#include "../include/tracejit.h"
#include "tj_test.h"

typedef trace_tensor T;
static trace_context *ctx, *other;
static trace_region *region, *eager;
static float zeros[64];
static int64_t numbers[4] = {0, 1, 2, 3}, outside[2] = {99, 0}, nine = 9, two[2];
static T *f, *g, *i, *oob, *b, *img, *z4, *s, *h, *ro, *ti, *foreign, *outs[3];

static void open_all(void) {
    trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet};
    TJ_ASSERT_OK(trace_context_create(&o, &ctx));
    TJ_ASSERT_OK(trace_context_create(&o, &other));
    TJ_ASSERT_OK(trace_region_create(ctx, "names", NULL, &region));
    TJ_ASSERT_OK(trace_region_create(ctx, "names", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &eager));
    f = trace_from(ctx, TRACE_F32, zeros, TRACE_DIMS(4, 4));
    g = trace_from(ctx, TRACE_F32, zeros, TRACE_DIMS(3));
    i = trace_from(ctx, TRACE_I64, numbers, TRACE_DIMS(4));
    ti = trace_from(ctx, TRACE_I64, zeros, TRACE_DIMS(2, 2));
    oob = trace_from(ctx, TRACE_I64, outside, TRACE_DIMS(2));
    b = trace_from(ctx, TRACE_BOOL, zeros, TRACE_DIMS(4, 4));
    img = trace_from(ctx, TRACE_F32, zeros, TRACE_DIMS(1, 2, 4, 4));
    z4 = trace_from(ctx, TRACE_I64, zeros, TRACE_DIMS(4));
    s = trace_from(ctx, TRACE_F32, zeros, TRACE_SCALAR);
    h = trace_from(ctx, TRACE_F16, zeros, TRACE_DIMS(4, 4));
    ro = trace_wrap_const(ctx, TRACE_F32, zeros, TRACE_DIMS(4, 4));
    foreign = trace_from(other, TRACE_F32, zeros, TRACE_DIMS(4, 4));
    ck_assert(f && g && i && ti && oob && b && img && z4 && s && h && ro && foreign);
}

static void close_all(void) {
    T *all[] = {f, g, i, ti, oob, b, img, z4, s, h, ro, foreign};
    for (size_t k = 0; k < TJ_COUNT(all); k++)
        trace_release(all[k]);
    trace_region_release(region);
    trace_region_release(eager);
    trace_context_release(ctx);
    trace_context_release(other);
}

// The text is "[region 'names': ]NAME: ..." or with a place after both names, and NAME leads nothing after that.
static void named(int line, const char *name, const char *place, bool in_region) {
    char lead[120];
    const char *text = trace_last_error(ctx), *rest = text;
    if (in_region) {
        const char *in = "region 'names'";
        ck_assert_msg(!strncmp(text, in, strlen(in)), "line %d: \"%s\" names no region", line, text);
        rest = strstr(text, ": ");
        ck_assert_msg(rest != NULL, "line %d: \"%s\"", line, text);
        rest += 2;
    }
    (void)snprintf(lead, sizeof lead, "%s%s: ", name, place);
    ck_assert_msg(!strncmp(rest, lead, strlen(lead)), "line %d: \"%s\" doesn't begin with \"%s\"", line, rest, lead);
    rest += strlen(lead);
    // No other op after it either: "name: " or "name (place): ".
    size_t word = strspn(rest, "abcdefghijklmnopqrstuvwxyz_0123456789");
    bool again = word && (!strncmp(rest + word, ": ", 2) || !strncmp(rest + word, " (host.c:", 9));
    ck_assert_msg(!again || !strncmp(rest, "shape", 5), "line %d: \"%s\" names another op", line, text);
}

// Bits of where it fails.
enum { REGION = 1, EAGER = 2, BOTH = 3 };
#define BAD_IN(where, name, place, expr)                                                                               \
    do {                                                                                                               \
        for (int e_ = 0; e_ < 2; e_++) {                                                                               \
            T *y_ = NULL;                                                                                              \
            if (!((where) >> e_ & 1))                                                                                  \
                continue;                                                                                              \
            if (trace_begin_at(e_ ? eager : region, &f, 1, NULL, 0))                                                   \
                y_ = (expr);                                                                                           \
            ck_assert_msg(trace_end_at(e_ ? eager : region, &y_, 1, NULL, 0) != TRACE_OK, "line %d: no failure",       \
                          __LINE__);                                                                                   \
            named(__LINE__, #name, place, true);                                                                       \
        }                                                                                                              \
        if ((where) == REGION)                                                                                         \
            break;                                                                                                     \
        ck_assert_msg((expr) == NULL, "line %d: no failure outside", __LINE__);                                        \
        named(__LINE__, #name, place, false);                                                                          \
    } while (0)
#define BAD_AT(name, place, expr) BAD_IN(BOTH, name, place, expr)
#define BAD(name, expr) BAD_AT(name, "", expr)

START_TEST(pointwise) {
    open_all();
    BAD(neg, (trace_neg)(b));
    BAD(abs, (trace_abs)(b));
    BAD(floor, (trace_floor)(b));
    BAD(ceil, (trace_ceil)(b));
    BAD(trunc, (trace_trunc)(b));
    BAD(round, (trace_round)(b));
    BAD(relu, (trace_relu)(b));
    BAD(relu6, (trace_relu6)(b));
    BAD(bitwise_not, (trace_bitwise_not)(f));
    BAD(add, (trace_add)(f, g));
    BAD(sub, (trace_sub)(f, g));
    BAD(mul, (trace_mul)(f, g));
    BAD(div, (trace_div)(f, g));
    BAD(floor_divide, (trace_floor_divide)(f, g));
    BAD(remainder, (trace_remainder)(f, g));
    BAD(fmod, (trace_fmod)(f, g));
    BAD(pow, (trace_pow)(f, g));
    BAD(maximum, (trace_maximum)(f, g));
    BAD(minimum, (trace_minimum)(f, g));
    BAD(eq, (trace_eq)(f, g));
    BAD(ne, (trace_ne)(f, g));
    BAD(lt, (trace_lt)(f, g));
    BAD(le, (trace_le)(f, g));
    BAD(gt, (trace_gt)(f, g));
    BAD(ge, (trace_ge)(f, g));
    BAD(logical_and, (trace_logical_and)(f, g));
    BAD(logical_or, (trace_logical_or)(f, g));
    BAD(logical_xor, (trace_logical_xor)(f, g));
    BAD(bitwise_and, (trace_bitwise_and)(f, g));
    BAD(bitwise_or, (trace_bitwise_or)(f, g));
    BAD(bitwise_xor, (trace_bitwise_xor)(f, g));
    BAD(add_, (trace_add_)(f, g));
    BAD(sub_, (trace_sub_)(f, g));
    BAD(mul_, (trace_mul_)(f, g));
    BAD(div_, (trace_div_)(f, g));
    BAD(copy_, (trace_copy_)(f, g));
    BAD(add_, (trace_add_f_)(ro, 1));
    BAD(fill_, (trace_fill_f_)(ro, 1));
    BAD(fill_, (trace_fill_i_)(ro, 1));
    BAD(mul_, (trace_mul_i_)(ro, 1));
    BAD(rsub, (trace_rsub_f)(b, 1));
    BAD(rsub, (trace_rsub_i)(b, 1));
    BAD(sub, (trace_sub_f)(b, 1));
    BAD(pow, (trace_pow_i)(i, -1));
    BAD(floor_divide, (trace_floor_divide_i)(i, 0));
    BAD(remainder, (trace_remainder_i)(i, 0));
    BAD(fmod, (trace_fmod)(i, z4));
    BAD(floor_divide, (trace_floor_divide)(i, z4));
    BAD(remainder, (trace_remainder)(i, z4));
    BAD(pow, (trace_pow)((trace_add_i)(i, 2), (trace_neg)((trace_add_i)(i, 1))));
    BAD(bitwise_and, (trace_bitwise_and_i)(f, 1));
    BAD(where, (trace_where)(f, f, f));
    BAD(where, (trace_where_f)(f, f, 1));
    BAD(where, (trace_where_i)(b, g, 1));
    BAD(masked_fill, (trace_masked_fill_f)(f, f, 1));
    BAD(masked_fill, (trace_masked_fill_i)(g, b, 1));
    BAD(clamp, (trace_clamp)(f, g, g));
    BAD(gelu, (trace_gelu)(f, 9));
    BAD(to, (trace_to)(f, 99));
    close_all();
}
END_TEST

START_TEST(views_and_moves) {
    open_all();
    BAD(embedding, (trace_embedding)(f, g));
    BAD(reshape, (trace_reshape)(f, TRACE_DIMS(3, 3)));
    BAD(reshape, (trace_reshape)(f, TRACE_DIMS(-1, -1)));
    BAD(permute, (trace_permute)(f, two, 2));
    BAD(expand, (trace_expand)(f, TRACE_DIMS(3, 3)));
    BAD(flip, (trace_flip)(f, TRACE_DIMS(7)));
    BAD(flatten, (trace_flatten)(f, 3, 1));
    BAD(transpose, (trace_transpose)(f, 0, 7));
    BAD(narrow, (trace_narrow)(f, 0, 3, 9));
    BAD(select, (trace_select)(f, 0, 77));
    BAD(slice, (trace_slice)(f, 0, 0, 3, 0));
    BAD(squeeze, (trace_squeeze)(f, 9));
    BAD(unsqueeze, (trace_unsqueeze)(f, 9));
    BAD(as_strided, (trace_as_strided)(f, (int64_t[]){9, 9}, (int64_t[]){9, 9}, 2, 0));
    BAD(diagonal, (trace_diagonal)(f, 0, 0, 0));
    BAD(unfold, (trace_unfold)(f, 0, 9, 1));
    BAD(cat, (trace_cat)(TRACE_ARGS(f, g), 0));
    BAD(stack, (trace_stack)(TRACE_ARGS(f, g), 0));
    BAD(stack, (trace_stack)(TRACE_ARGS(f, f), 9));
    BAD(pad, (trace_pad)(f, TRACE_DIMS(1, 2, 3), 0, 0));
    BAD(pad, (trace_pad)(f, TRACE_DIMS(9, 9), TRACE_PAD_REFLECT, 0));
    BAD(gather, (trace_gather)(f, 0, g));
    BAD(gather, (trace_gather)(f, 9, ti));
    BAD(gather, (trace_gather)(f, 0, (trace_reshape)(oob, TRACE_DIMS(1, 2))));
    BAD(index_select, (trace_index_select)(f, 0, g));
    BAD(index_select, (trace_index_select)(f, 0, ti));
    BAD(index_select, (trace_index_select)(f, 0, oob));
    BAD(index_select, (trace_index_select)(f, 9, i));
    BAD(embedding, (trace_embedding)(f, oob));
    BAD(embedding, (trace_embedding)(f, g));
    BAD(embedding, (trace_embedding)(g, i));
    BAD(embedding, (trace_embedding)(f, (trace_reshape)(oob, TRACE_DIMS(1, 2))));
    BAD(index_copy_, (trace_index_copy_)((trace_clone)(f), 0, oob, (trace_narrow)(f, 0, 0, 2)));
    BAD(index_copy_, (trace_index_copy_)(f, 0, g, f));
    BAD(index_copy_, (trace_index_copy_)(ro, 0, i, f));
    BAD(index_copy_, (trace_index_copy_)(f, 9, i, f));
    BAD(index_copy_, (trace_index_copy_)(f, 0, i, h));
    BAD(arange, (trace_arange)(ctx, 0, 5, 0, TRACE_F32));
    BAD(full, (trace_full_f)(ctx, TRACE_DIMS(-1), 0, TRACE_F32));
    BAD(full, (trace_full_i)(ctx, TRACE_DIMS(-1), 0, TRACE_F32));
    BAD(zeros, (trace_zeros)(ctx, TRACE_DIMS(-1), TRACE_F32));
    BAD(ones, (trace_ones)(ctx, TRACE_DIMS(-1), TRACE_F32));
    BAD(split, trace_split_at(f, 0, 0, outs, 3, NULL, 0) ? NULL : outs[0]);
    BAD(chunk, trace_chunk_at(f, 0, 0, outs, 3, NULL, 0) ? NULL : outs[0]);
    BAD(split, trace_split_at(f, 1, 9, outs, 3, NULL, 0) ? NULL : outs[0]);
    BAD(chunk, trace_chunk_at(f, 2, 9, outs, 3, NULL, 0) ? NULL : outs[0]);
    BAD(split, trace_split_at(f, 1, 0, outs, 3, NULL, 0) ? NULL : outs[0]);
    BAD(chunk, trace_chunk_at(f, 2, 0, outs, 3, NULL, 0) ? NULL : outs[0]);
    BAD(cat, (trace_cat)(TRACE_ARGS(f, foreign), 0));
    close_all();
}
END_TEST

START_TEST(reductions_and_contractions) {
    open_all();
    BAD(matmul, (trace_matmul)(f, g));
    BAD(bmm, (trace_bmm)(f, g));
    BAD(sum, (trace_sum)(f, &nine, 1, false));
    BAD(mean, (trace_mean)(f, &nine, 1, false));
    BAD(amax, (trace_amax)(f, &nine, 1, false));
    BAD(amin, (trace_amin)(f, &nine, 1, false));
    BAD(any, (trace_any)(f, &nine, 1, false));
    BAD(all, (trace_all)(f, &nine, 1, false));
    BAD(var, (trace_var)(f, &nine, 1, 1, false));
    BAD(argmax, (trace_argmax)(f, 9, false));
    BAD(argmin, (trace_argmin)(f, 9, false));
    BAD(softmax, (trace_softmax)(f, 9));
    BAD(log_softmax, (trace_log_softmax)(f, 9));
    BAD(layer_norm, (trace_layer_norm)(f, TRACE_DIMS(3), TRACE_NONE, TRACE_NONE, 1e-5));
    BAD(rms_norm, (trace_rms_norm)(f, g, 1e-5));
    BAD(batch_norm, (trace_batch_norm)(f, g, g, g, g, 1e-5));
    BAD(cross_entropy, (trace_cross_entropy)(f, g, TRACE_NONE, 0, -100, 0));
    BAD(cross_entropy, (trace_cross_entropy)((trace_narrow)(f, 0, 0, 2), oob, TRACE_NONE, 0, -100, 0));
    BAD(cross_entropy, (trace_cross_entropy)(f, oob, TRACE_NONE, 0, -100, 0));
    BAD(cross_entropy, (trace_cross_entropy)(s, s, TRACE_NONE, 0, -100, 0));
    BAD(cross_entropy, (trace_cross_entropy)(i, i, TRACE_NONE, 0, -100, 0));
    BAD(linear, (trace_linear)(f, g, TRACE_NONE));
    BAD(linear, (trace_linear)(f, f, g));
    BAD(conv2d, (trace_conv2d)(img, img, f, NULL, NULL, NULL, 7));
    BAD(scaled_dot_product_attention, (trace_scaled_dot_product_attention)(f, g, f, TRACE_NONE, 0, 0, 0));
    BAD(scaled_dot_product_attention, (trace_scaled_dot_product_attention)(f, f, f, g, 0, 0, 0));
    BAD(max_pool2d, (trace_max_pool2d)(f, two, NULL, NULL, NULL, 0));
    BAD(avg_pool2d, (trace_avg_pool2d)(img, two, NULL, NULL, 0, 0, 0));
    BAD(gru_cell, (trace_gru_cell)(f, f, f, f, g, g));
    BAD(gru_cell, (trace_gru_cell)(f, g, f, f, TRACE_NONE, TRACE_NONE));
    BAD(matmul, (trace_matmul)(s, f));
    BAD(matmul, (trace_matmul)(b, b));
    BAD(bmm, (trace_bmm)(f, f));
    BAD(bmm, (trace_bmm)(img, img));
    close_all();
}
END_TEST

START_TEST(with_places) {
    open_all();
    BAD_AT(embedding, " (host.c:7)", trace_embedding_at(f, oob, "host.c", 7));
    BAD_AT(index_select, " (host.c:7)", trace_index_select_at(f, 0, oob, "host.c", 7));
    BAD_AT(cross_entropy, " (host.c:7)",
           trace_cross_entropy_at(f, (trace_cat)((T *[]){oob, oob}, 2, 0), TRACE_NONE, TRACE_REDUCTION_MEAN, -100, 0,
                                  "host.c", 7));
    BAD_AT(index_copy_, " (host.c:7)", trace_index_copy__at(f, 0, oob, (trace_narrow)(f, 0, 0, 2), "host.c", 7));
    BAD_AT(remainder, " (host.c:7)", trace_remainder_at(i, z4, "host.c", 7));
    BAD_AT(pow, " (host.c:7)", trace_pow_at((trace_add_i)(i, 2), (trace_neg)((trace_add_i)(i, 1)), "host.c", 7));
    BAD_AT(bmm, " (host.c:7)", trace_bmm_at(f, f, "host.c", 7));
    BAD_AT(gru_cell, " (host.c:7)", trace_gru_cell_at(f, f, f, f, g, g, "host.c", 7));
    close_all();
}
END_TEST

// A composite that fails in the middle of a run, and in a later one that hits the cache.
START_TEST(in_later_runs) {
    open_all();
    for (int k = 0; k < 4; k++) {
        T *index = trace_from(ctx, TRACE_I64, k % 2 ? outside : numbers, TRACE_DIMS(2)), *y = NULL;
        if (trace_begin_at(region, &index, 1, NULL, 0))
            y = (trace_add_f)(trace_embedding_at(f, index, "host.c", k), 1);
        tj_status st = trace_end_at(region, &y, 1, NULL, 0);
        ck_assert_int_eq(st, k % 2 ? TRACE_ERR_DEVICE : TRACE_OK);
        if (k % 2)
            ck_assert_msg(strstr(trace_last_error(ctx), "embedding (host.c:") != NULL, "%s", trace_last_error(ctx));
        trace_release(y);
        trace_release(index);
    }
    close_all();
}
END_TEST

TJ_TEST_MAIN("names", pointwise, views_and_moves, reductions_and_contractions, with_places, in_later_runs)
