// kernels/transpose.c: transposes matrices of plain elements: blocks in registers, interleaving of a few rows.
//
// Three forms. Rows that come to lie side by side (rows == dst_stride, at most 7 of them) are interleaved, their
// inverse (cols == src_stride) is taken apart, both with byte shuffles of whole vectors; everything else goes by square
// blocks, the last of a side laid back over its neighbour, so that no remainder is left unless a side is below a block.
#include "transpose.h"

#include <string.h>

enum { FEW = 7 };
#define INLINE static inline __attribute__((always_inline))
// The side whose stride is longer is memory, the other one a tile in cache: lines of the former are gone through whole.
#define BY_ROWS(ds, ss) (((ss) < 0 ? -(ss) : (ss)) >= ((ds) < 0 ? -(ds) : (ds)))

// ---- plain --------------------------------------------------------------------------------------------------------

INLINE void move(unsigned char *d, const unsigned char *s, unsigned b) {
    if (b == 1) {
        *d = *s;
    } else if (b == 2) {
        memcpy(d, s, 2);
    } else if (b == 4) {
        memcpy(d, s, 4);
    } else {
        memcpy(d, s, 8);
    }
}

INLINE void plain(unsigned b, void *dst, int64_t ds, const void *src, int64_t ss, int64_t rows, int64_t cols) {
    enum { SIDE = 16 };
    unsigned char *d = dst;
    const unsigned char *s = src;
    const int64_t e = b;
    for (int64_t r0 = 0; r0 < rows; r0 += SIDE) {
        int64_t r1 = r0 + SIDE < rows ? r0 + SIDE : rows;
        for (int64_t c0 = 0; c0 < cols; c0 += SIDE) {
            int64_t c1 = c0 + SIDE < cols ? c0 + SIDE : cols;
            for (int64_t c = c0; c < c1; c++) {
                for (int64_t r = r0; r < r1; r++) {
                    move(d + (c * ds + r) * e, s + (r * ss + c) * e, b);
                }
            }
        }
    }
}

// Fewer rows (columns) than a block has: all of them together, element after element.
INLINE void few(unsigned b, unsigned k, bool rows, unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss,
                int64_t n) {
    const int64_t e = b;
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 8
        for (unsigned j = 0; j < k; j++) {
            if (rows) {
                move(d + (i * ds + j) * e, s + ((int64_t)j * ss + i) * e, b);
            } else {
                move(d + ((int64_t)j * ds + i) * e, s + (i * ss + j) * e, b);
            }
        }
    }
}
INLINE bool short_side(unsigned b, unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss, int64_t rows,
                       int64_t cols) {
    bool by_rows = rows <= cols;
    int64_t n = by_rows ? cols : rows;
    switch (by_rows ? rows : cols) {
    case 1: few(b, 1, by_rows, d, ds, s, ss, n); return true;
    case 2: few(b, 2, by_rows, d, ds, s, ss, n); return true;
    case 3: few(b, 3, by_rows, d, ds, s, ss, n); return true;
    case 4: few(b, 4, by_rows, d, ds, s, ss, n); return true;
    default: return false;
    }
}

#define PLAIN(B)                                                                                                       \
    static void plain_##B(void *dst, int64_t ds, const void *src, int64_t ss, int64_t rows, int64_t cols) {            \
        if (!short_side(B, dst, ds, src, ss, rows, cols)) {                                                            \
            plain(B, dst, ds, src, ss, rows, cols);                                                                    \
        }                                                                                                              \
    }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)

#if defined(__x86_64__)
#include <immintrin.h>

#define VEX __attribute__((target("avx2")))
#define VINLINE static inline __attribute__((always_inline, target("avx2")))

// ---- masks of byte shuffles ---------------------------------------------------------------------------------------

// k streams of elements of b bytes, and the one in which they take turns. Byte p of vector j of the latter is byte
// FROM of stream STREAM; 128 in a mask gives 0.
#define ELEM(b, j, p) ((16 * (j) + (p)) / (b))
#define FROM(b, k, j, p) (ELEM(b, j, p) / (k) * (b) + (p) % (b))
#define WEAVE(b, k, j, s, p) (ELEM(b, j, p) % (k) == (s) ? FROM(b, k, j, p) : 128)
// Byte p of stream s lies in vector IN of the joined one.
#define BYTE(b, k, s, p) (((p) / (b) * (k) + (s)) * (b) + (p) % (b))
#define PART(b, k, s, j, p) (BYTE(b, k, s, p) / 16 == (j) ? BYTE(b, k, s, p) % 16 : 128)
#define SIXTEEN(F, b, k, x, y)                                                                                         \
    {                                                                                                                  \
        F(b, k, x, y, 0), F(b, k, x, y, 1), F(b, k, x, y, 2), F(b, k, x, y, 3), F(b, k, x, y, 4), F(b, k, x, y, 5),    \
            F(b, k, x, y, 6), F(b, k, x, y, 7), F(b, k, x, y, 8), F(b, k, x, y, 9), F(b, k, x, y, 10),                 \
            F(b, k, x, y, 11), F(b, k, x, y, 12), F(b, k, x, y, 13), F(b, k, x, y, 14), F(b, k, x, y, 15)              \
    }
#define ROW2(F, b, k, x) SIXTEEN(F, b, k, x, 0), SIXTEEN(F, b, k, x, 1)
#define ROW3(F, b, k, x) ROW2(F, b, k, x), SIXTEEN(F, b, k, x, 2)
#define ROW5(F, b, k, x) ROW3(F, b, k, x), SIXTEEN(F, b, k, x, 3), SIXTEEN(F, b, k, x, 4)
#define ROW6(F, b, k, x) ROW5(F, b, k, x), SIXTEEN(F, b, k, x, 5)
#define ROW7(F, b, k, x) ROW6(F, b, k, x), SIXTEEN(F, b, k, x, 6)
#define ALL2(F, b) ROW2(F, b, 2, 0), ROW2(F, b, 2, 1)
#define ALL5(F, b) ROW5(F, b, 5, 0), ROW5(F, b, 5, 1), ROW5(F, b, 5, 2), ROW5(F, b, 5, 3), ROW5(F, b, 5, 4)
#define ALL6(F, b)                                                                                                     \
    ROW6(F, b, 6, 0), ROW6(F, b, 6, 1), ROW6(F, b, 6, 2), ROW6(F, b, 6, 3), ROW6(F, b, 6, 4), ROW6(F, b, 6, 5)
#define ALL7(F, b)                                                                                                     \
    ROW7(F, b, 7, 0), ROW7(F, b, 7, 1), ROW7(F, b, 7, 2), ROW7(F, b, 7, 3), ROW7(F, b, 7, 4), ROW7(F, b, 7, 5),        \
        ROW7(F, b, 7, 6)
#define MASKS(k, b)                                                                                                    \
    static const unsigned char weave_##k##_##b[(k) * (k)][16] __attribute__((aligned(16))) = {ALL##k(WEAVE, b)};       \
    static const unsigned char part_##k##_##b[(k) * (k)][16] __attribute__((aligned(16))) = {ALL##k(PART, b)};
MASKS(2, 1)
MASKS(2, 2)
MASKS(2, 4)
MASKS(5, 1)
MASKS(5, 2)
MASKS(6, 1)
MASKS(6, 2)
MASKS(7, 1)
MASKS(7, 2)
// Four of them: elements of one stream side by side within a vector, and back.
static const unsigned char group_1[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}; // its own inverse
static const unsigned char group_2[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
static const unsigned char ungroup_2[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};

// ---- vectors ------------------------------------------------------------------------------------------------------

VINLINE __m128i get(const unsigned char *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
VINLINE void put(unsigned char *p, __m128i v) { _mm_storeu_si128((__m128i *)(void *)p, v); }
VINLINE __m128i half(const unsigned char *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }

VINLINE void four(__m128i *v) { // 4 x 4 elements of 4 bytes
    __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpackhi_epi32(v[0], v[1]);
    __m128i c = _mm_unpacklo_epi32(v[2], v[3]), d = _mm_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm_unpacklo_epi64(a, c);
    v[1] = _mm_unpackhi_epi64(a, c);
    v[2] = _mm_unpacklo_epi64(b, d);
    v[3] = _mm_unpackhi_epi64(b, d);
}

// k rows of n elements, each `ss` after the one before, interleaved at d. Gives how many of them are done.
VINLINE int64_t weave(unsigned b, unsigned k, const unsigned char (*m)[16], unsigned char *d, const unsigned char *s,
                      int64_t ss, int64_t n) {
    const int64_t per = 16 / b;
    int64_t i = 0;
    for (; i + per <= n; i += per) {
        __m128i in[FEW];
#pragma GCC unroll 8
        for (unsigned r = 0; r < k; r++) {
            in[r] = get(s + ((int64_t)r * ss + i) * (int64_t)b);
        }
#pragma GCC unroll 8
        for (unsigned j = 0; j < k; j++) {
            __m128i v = _mm_shuffle_epi8(in[0], get(m[j * k]));
#pragma GCC unroll 8
            for (unsigned r = 1; r < k; r++) {
                v = _mm_or_si128(v, _mm_shuffle_epi8(in[r], get(m[j * k + r])));
            }
            put(d + i * (int64_t)(k * b) + 16 * j, v);
        }
    }
    return i;
}

// The reverse: n groups of k at s to k rows, `ds` apart.
VINLINE int64_t part(unsigned b, unsigned k, const unsigned char (*m)[16], unsigned char *d, int64_t ds,
                     const unsigned char *s, int64_t n) {
    const int64_t per = 16 / b;
    int64_t i = 0;
    for (; i + per <= n; i += per) {
        __m128i in[FEW];
#pragma GCC unroll 8
        for (unsigned j = 0; j < k; j++) {
            in[j] = get(s + i * (int64_t)(k * b) + 16 * j);
        }
#pragma GCC unroll 8
        for (unsigned r = 0; r < k; r++) {
            __m128i v = _mm_shuffle_epi8(in[0], get(m[r * k]));
#pragma GCC unroll 8
            for (unsigned j = 1; j < k; j++) {
                v = _mm_or_si128(v, _mm_shuffle_epi8(in[j], get(m[r * k + j])));
            }
            put(d + ((int64_t)r * ds + i) * (int64_t)b, v);
        }
    }
    return i;
}

// Three streams: their elements are moved to their places within a vector, then vectors are blended. With V elements a
// vector, those of stream s lie at (3 i + s) mod V of it, and place p of joined vector j is of stream (V j + p) mod 3.
#define OF(V, j, s, p) (((V) * (j) + (p)) % 3 == (s))
#define BITS4(V, j, s, p)                                                                                              \
    (OF(V, j, s, p) | OF(V, j, s, (p) + 1) << 1 | OF(V, j, s, (p) + 2) << 2 | OF(V, j, s, (p) + 3) << 3)
#define BITS8(j, s) (BITS4(8, j, s, 0) | BITS4(8, j, s, 4) << 4)
#define EIGHT(F, s)                                                                                                    \
    { F(s, 0), F(s, 1), F(s, 2), F(s, 3), F(s, 4), F(s, 5), F(s, 6), F(s, 7) }
#define PLACES(F, b, n, s)                                                                                             \
    {                                                                                                                  \
        F(b, n, s, 0), F(b, n, s, 1), F(b, n, s, 2), F(b, n, s, 3), F(b, n, s, 4), F(b, n, s, 5), F(b, n, s, 6),       \
            F(b, n, s, 7), F(b, n, s, 8), F(b, n, s, 9), F(b, n, s, 10), F(b, n, s, 11), F(b, n, s, 12),               \
            F(b, n, s, 13), F(b, n, s, 14), F(b, n, s, 15)                                                             \
    }
// Element of stream s for place p of a joined vector (inv: 1 / 3 mod n); place of its element i.
#define COMES(inv, n, s, p) ((inv) * ((p) + (n) - (s)) % (n))
#define GOES(n, s, i) ((3 * (i) + (s)) % (n))
#define COMES8(s, p) COMES(3, 8, s, p)
#define GOES8(s, i) GOES(8, s, i)
#define COMES_BYTE(b, n, s, p) (COMES((n) == 16 ? 11 : 3, n, s, (p) / (b)) * (b) + (p) % (b))
#define GOES_BYTE(b, n, s, p) (GOES(n, s, (p) / (b)) * (b) + (p) % (b))
#define OF_BYTE(j, n, s, p) (OF(n, j, s, p) ? 255 : 0)
#define ALIGN(n) __attribute__((aligned(n)))
static const unsigned char comes_1[3][16] ALIGN(16) = {PLACES(COMES_BYTE, 1, 16, 0), PLACES(COMES_BYTE, 1, 16, 1),
                                                       PLACES(COMES_BYTE, 1, 16, 2)};
static const unsigned char goes_1[3][16] ALIGN(16) = {PLACES(GOES_BYTE, 1, 16, 0), PLACES(GOES_BYTE, 1, 16, 1),
                                                      PLACES(GOES_BYTE, 1, 16, 2)};
static const unsigned char comes_2[3][16] ALIGN(16) = {PLACES(COMES_BYTE, 2, 8, 0), PLACES(COMES_BYTE, 2, 8, 1),
                                                       PLACES(COMES_BYTE, 2, 8, 2)};
static const unsigned char goes_2[3][16] ALIGN(16) = {PLACES(GOES_BYTE, 2, 8, 0), PLACES(GOES_BYTE, 2, 8, 1),
                                                      PLACES(GOES_BYTE, 2, 8, 2)};
static const int comes_4[3][8] ALIGN(32) = {EIGHT(COMES8, 0), EIGHT(COMES8, 1), EIGHT(COMES8, 2)};
static const int goes_4[3][8] ALIGN(32) = {EIGHT(GOES8, 0), EIGHT(GOES8, 1), EIGHT(GOES8, 2)};
// [j - 1][s]: bytes of vector j that are of stream s; [2]: of vector 0.
static const unsigned char of_1[3][3][16] ALIGN(16) = {
    {PLACES(OF_BYTE, 1, 16, 0), PLACES(OF_BYTE, 1, 16, 1), PLACES(OF_BYTE, 1, 16, 2)},
    {PLACES(OF_BYTE, 2, 16, 0), PLACES(OF_BYTE, 2, 16, 1), PLACES(OF_BYTE, 2, 16, 2)},
    {PLACES(OF_BYTE, 0, 16, 0), PLACES(OF_BYTE, 0, 16, 1), PLACES(OF_BYTE, 0, 16, 2)}};

#define LOAD128(p) get(p)
#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define STORE256(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define INDEX256(m) _mm256_load_si256((const __m256i *)(const void *)(m))
#define MOVE_1(v, m) _mm_shuffle_epi8(v, get(m))
#define MOVE_4(v, m) _mm256_permutevar8x32_epi32(v, INDEX256(m))
#define AS_PD(v) _mm256_castsi256_pd(v)
#define BLEND_1(x, y, j, s) _mm_blendv_epi8(x, y, get(of_1[((j) + 2) % 3][s]))
#define BLEND_2(x, y, j, s) _mm_blend_epi16(x, y, BITS8(j, s))
#define BLEND_4(x, y, j, s) _mm256_blend_epi32(x, y, BITS8(j, s))
#define BLEND_8(x, y, j, s) _mm256_castpd_si256(_mm256_blend_pd(AS_PD(x), AS_PD(y), BITS4(4, j, s, 0)))
#define COME_1(v, s) MOVE_1(v, comes_1[s])
#define COME_2(v, s) MOVE_1(v, comes_2[s])
#define COME_4(v, s) MOVE_4(v, comes_4[s])
#define GO_1(v, s) MOVE_1(v, goes_1[s])
#define GO_2(v, s) MOVE_1(v, goes_2[s])
#define GO_4(v, s) MOVE_4(v, goes_4[s])
// 4 elements of 8 bytes: both ways are the same.
#define COME_8(v, s) _mm256_permute4x64_epi64(v, (s) == 0 ? 0x6c : (s) == 1 ? 0xb1 : 0xc6)
#define GO_8 COME_8

#define THREE(B, T, V, LOAD, STORE)                                                                                    \
    VINLINE int64_t weave_three_##B(unsigned char *d, const unsigned char *s, int64_t ss, int64_t n) {                 \
        int64_t i = 0;                                                                                                 \
        for (; i + (V) <= n; i += (V)) {                                                                               \
            T x = COME_##B(LOAD(s + i * (B)), 0), y = COME_##B(LOAD(s + (ss + i) * (B)), 1);                           \
            T z = COME_##B(LOAD(s + (2 * ss + i) * (B)), 2);                                                           \
            unsigned char *to = d + 3 * i * (B);                                                                       \
            STORE(to, BLEND_##B(BLEND_##B(x, y, 0, 1), z, 0, 2));                                                      \
            STORE(to + (V) * (B), BLEND_##B(BLEND_##B(x, y, 1, 1), z, 1, 2));                                          \
            STORE(to + 2 * (V) * (B), BLEND_##B(BLEND_##B(x, y, 2, 1), z, 2, 2));                                      \
        }                                                                                                              \
        return i;                                                                                                      \
    }                                                                                                                  \
    VINLINE int64_t part_three_##B(unsigned char *d, int64_t ds, const unsigned char *s, int64_t n) {                  \
        int64_t i = 0;                                                                                                 \
        for (; i + (V) <= n; i += (V)) {                                                                               \
            const unsigned char *from = s + 3 * i * (B);                                                               \
            T x = LOAD(from), y = LOAD(from + (V) * (B)), z = LOAD(from + 2 * (V) * (B));                              \
            STORE(d + i * (B), GO_##B(BLEND_##B(BLEND_##B(x, y, 1, 0), z, 2, 0), 0));                                  \
            STORE(d + (ds + i) * (B), GO_##B(BLEND_##B(BLEND_##B(x, y, 1, 1), z, 2, 1), 1));                           \
            STORE(d + (2 * ds + i) * (B), GO_##B(BLEND_##B(BLEND_##B(x, y, 1, 2), z, 2, 2), 2));                       \
        }                                                                                                              \
        return i;                                                                                                      \
    }
THREE(1, __m128i, 16, LOAD128, put)
THREE(2, __m128i, 8, LOAD128, put)
THREE(4, __m256i, 8, LOAD256, STORE256)
THREE(8, __m256i, 4, LOAD256, STORE256)

// Four rows of elements of 1 or 2 bytes; the reverse, of 4 bytes too, of all or the first three.
VINLINE int64_t weave_four(unsigned b, unsigned char *d, const unsigned char *s, int64_t ss, int64_t n) {
    const int64_t per = 16 / b;
    const __m128i m = get(b == 1 ? group_1 : ungroup_2);
    int64_t i = 0;
    for (; i + per <= n; i += per) {
        __m128i v[4];
#pragma GCC unroll 8
        for (int r = 0; r < 4; r++) {
            v[r] = get(s + (r * ss + i) * (int64_t)b);
        }
        four(v);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            put(d + i * (int64_t)(4 * b) + 16 * j, _mm_shuffle_epi8(v[j], m));
        }
    }
    return i;
}
VINLINE int64_t part_four(unsigned b, unsigned char *d, int64_t ds, const unsigned char *s, int64_t n, bool all) {
    const int64_t per = 16 / b;
    const __m128i m = get(b == 1 ? group_1 : group_2);
    int64_t i = 0;
    for (; i + per <= n; i += per) {
        __m128i v[4];
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            v[j] = get(s + i * (int64_t)(4 * b) + 16 * j);
            v[j] = b < 4 ? _mm_shuffle_epi8(v[j], m) : v[j];
        }
        four(v);
        put(d + i * (int64_t)b, v[0]);
        put(d + (ds + i) * (int64_t)b, v[1]);
        put(d + (2 * ds + i) * (int64_t)b, v[2]);
        if (all) {
            put(d + (3 * ds + i) * (int64_t)b, v[3]);
        }
    }
    return i;
}

// Columns of `rows` interleaved rows that are done; 0: there is no such form, or no whole vector.
#define WEAVE_FEW(B, K) weave(B, K, weave_##K##_##B, d, s, ss, n)
VINLINE int64_t weave_few(unsigned b, unsigned char *d, const unsigned char *s, int64_t ss, int64_t rows, int64_t n) {
    switch (rows) {
    case 2: return b == 1 ? WEAVE_FEW(1, 2) : b == 2 ? WEAVE_FEW(2, 2) : b == 4 ? WEAVE_FEW(4, 2) : 0;
    case 3:
        return b == 1   ? weave_three_1(d, s, ss, n)
               : b == 2 ? weave_three_2(d, s, ss, n)
               : b == 4 ? weave_three_4(d, s, ss, n)
                        : weave_three_8(d, s, ss, n);
    case 4: return b < 4 ? weave_four(b, d, s, ss, n) : 0;
    case 5: return b == 1 ? WEAVE_FEW(1, 5) : b == 2 ? WEAVE_FEW(2, 5) : 0;
    case 6: return b == 1 ? WEAVE_FEW(1, 6) : b == 2 ? WEAVE_FEW(2, 6) : 0;
    case 7: return b == 1 ? WEAVE_FEW(1, 7) : b == 2 ? WEAVE_FEW(2, 7) : 0;
    default: return 0;
    }
}
// The reverse: rows of `cols` elements that are done.
#define PART_FEW(B, K) part(B, K, part_##K##_##B, d, ds, s, n)
VINLINE int64_t part_few(unsigned b, unsigned char *d, int64_t ds, const unsigned char *s, int64_t cols, int64_t n) {
    switch (cols) {
    case 2: return b == 1 ? PART_FEW(1, 2) : b == 2 ? PART_FEW(2, 2) : b == 4 ? PART_FEW(4, 2) : 0;
    case 3:
        return b == 1   ? part_three_1(d, ds, s, n)
               : b == 2 ? part_three_2(d, ds, s, n)
               : b == 4 ? part_three_4(d, ds, s, n)
                        : part_three_8(d, ds, s, n);
    case 4: return b < 4 ? part_four(b, d, ds, s, n, true) : 0;
    case 5: return b == 1 ? PART_FEW(1, 5) : b == 2 ? PART_FEW(2, 5) : 0;
    case 6: return b == 1 ? PART_FEW(1, 6) : b == 2 ? PART_FEW(2, 6) : 0;
    case 7: return b == 1 ? PART_FEW(1, 7) : b == 2 ? PART_FEW(2, 7) : 0;
    default: return 0;
    }
}

// ---- blocks -------------------------------------------------------------------------------------------------------

VINLINE void block_1(unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss) { // 8 x 8
    __m128i a = _mm_unpacklo_epi8(half(s), half(s + ss)), b = _mm_unpacklo_epi8(half(s + 2 * ss), half(s + 3 * ss));
    __m128i c = _mm_unpacklo_epi8(half(s + 4 * ss), half(s + 5 * ss));
    __m128i e = _mm_unpacklo_epi8(half(s + 6 * ss), half(s + 7 * ss));
    __m128i ab = _mm_unpacklo_epi16(a, b), ab2 = _mm_unpackhi_epi16(a, b);
    __m128i ce = _mm_unpacklo_epi16(c, e), ce2 = _mm_unpackhi_epi16(c, e);
    __m128i v[4] = {_mm_unpacklo_epi32(ab, ce), _mm_unpackhi_epi32(ab, ce), _mm_unpacklo_epi32(ab2, ce2),
                    _mm_unpackhi_epi32(ab2, ce2)};
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        _mm_storel_epi64((__m128i *)(void *)(d + 2 * i * ds), v[i]);
        _mm_storel_epi64((__m128i *)(void *)(d + (2 * i + 1) * ds), _mm_unpackhi_epi64(v[i], v[i]));
    }
}
VINLINE void block_2(unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss) { // 8 x 8
    __m128i a[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        __m128i x = get(s + i * ss), y = get(s + (i + 1) * ss);
        a[i] = _mm_unpacklo_epi16(x, y);
        a[i + 1] = _mm_unpackhi_epi16(x, y);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 2; i++) { // pairs of rows in dwords: two 4 x 4 transposes
        __m128i v[4] = {a[0 + i], a[2 + i], a[4 + i], a[6 + i]};
        four(v);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            put(d + (4 * i + j) * ds, v[j]);
        }
    }
}
VINLINE void block_4(unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss) { // 4 x 4
    __m128i v[4] = {get(s), get(s + ss), get(s + 2 * ss), get(s + 3 * ss)};
    four(v);
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        put(d + i * ds, v[i]);
    }
}
VINLINE void block_8(unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss) { // 2 x 2
    __m128i x = get(s), y = get(s + ss);
    put(d, _mm_unpacklo_epi64(x, y));
    put(d + ds, _mm_unpackhi_epi64(x, y));
}

VINLINE void block(unsigned b, unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss) {
    switch (b) {
    case 1: block_1(d, ds, s, ss); break;
    case 2: block_2(d, ds, s, ss); break;
    case 4: block_4(d, ds, s, ss); break;
    default: block_8(d, ds, s, ss);
    }
}

VINLINE void blocks(unsigned b, unsigned char *d, int64_t ds, const unsigned char *s, int64_t ss, int64_t rows,
                    int64_t cols) {
    const int64_t e = b, side = b == 1 ? 8 : 16 / e;
    if (BY_ROWS(ds, ss)) {
        for (int64_t r = 0; r < rows; r += side) {
            r = r + side > rows ? rows - side : r;
            for (int64_t c = 0; c < cols; c += side) {
                c = c + side > cols ? cols - side : c;
                block(b, d + (c * ds + r) * e, ds * e, s + (r * ss + c) * e, ss * e);
            }
        }
        return;
    }
    for (int64_t c = 0; c < cols; c += side) {
        c = c + side > cols ? cols - side : c;
        for (int64_t r = 0; r < rows; r += side) {
            r = r + side > rows ? rows - side : r;
            block(b, d + (c * ds + r) * e, ds * e, s + (r * ss + c) * e, ss * e);
        }
    }
}

VINLINE void vectors(unsigned b, void *dst, int64_t ds, const void *src, int64_t ss, int64_t rows, int64_t cols) {
    unsigned char *d = dst;
    const unsigned char *s = src;
    const int64_t e = b, side = b == 1 ? 8 : 16 / e;
    int64_t done = 0;
    if (rows == ds && rows <= FEW) {
        done = weave_few(b, d, s, ss, rows, cols);
        d += done * ds * e;
        s += done * e;
        cols -= done;
    } else if (ss <= FEW && (cols == ss || (cols == 3 && ss == 4 && b < 8))) {
        // Three of four: the fourth of the last row may not be there.
        done = cols == ss ? part_few(b, d, ds, s, cols, rows) : part_four(b, d, ds, s, rows - 1, false);
        d += done * e;
        s += done * ss * e;
        rows -= done;
    }
    if (rows >= side && cols >= side) {
        blocks(b, d, ds, s, ss, rows, cols);
    } else if (rows > 0 && cols > 0 && !short_side(b, d, ds, s, ss, rows, cols)) {
        plain(b, d, ds, s, ss, rows, cols);
    }
}

// Whether n lines, `stride` bytes apart, stay in a first-level cache: 64 sets of at least 8, some of them left for
// others.
INLINE bool spread(int64_t stride, int64_t n) {
    int64_t apart = stride & -stride;
    return apart > 0 && apart < 4096 && n <= 4096 / apart * 4;
}

// Between matrices in memory: in squares of lines, through a buffer where lines of dst would push each other out.
VINLINE void far(unsigned b, void *dst, int64_t ds, const void *src, int64_t ss, int64_t rows, int64_t cols) {
    enum { ROWS = 128, LINE = 64 };
    const int64_t e = b, wide = LINE / e;
    unsigned char *d = dst, buffer[ROWS * LINE] __attribute__((aligned(64)));
    const unsigned char *s = src;
    if (rows < 8 || cols < 8) {
        vectors(b, d, ds, s, ss, rows, cols);
        return;
    }
    const bool direct = spread(ds * e, wide);
    const int64_t high = direct ? wide : ROWS;
    for (int64_t c0 = 0; c0 < cols; c0 += wide) {
        int64_t nc = cols - c0 < wide ? cols - c0 : wide;
        for (int64_t r0 = 0; r0 < rows; r0 += high) {
            int64_t nr = rows - r0 < high ? rows - r0 : high;
            if (direct) {
                vectors(b, d + (c0 * ds + r0) * e, ds, s + (r0 * ss + c0) * e, ss, nr, nc);
                continue;
            }
            vectors(b, buffer, ROWS, s + (r0 * ss + c0) * e, ss, nr, nc);
            for (int64_t c = 0; c < nc; c++) {
                memcpy(d + ((c0 + c) * ds + r0) * e, buffer + c * ROWS * e, (size_t)(nr * e));
            }
        }
    }
}

#define VECTORS(B)                                                                                                     \
    VEX static void vectors_##B(void *dst, int64_t ds, const void *src, int64_t ss, int64_t rows, int64_t cols) {      \
        vectors(B, dst, ds, src, ss, rows, cols);                                                                      \
    }                                                                                                                  \
    VEX static void far_##B(void *dst, int64_t ds, const void *src, int64_t ss, int64_t rows, int64_t cols) {          \
        far(B, dst, ds, src, ss, rows, cols);                                                                          \
    }
VECTORS(1)
VECTORS(2)
VECTORS(4)
VECTORS(8)
#endif

tj_transpose_fn tj_transpose_for(enum tj_cpu_level level, unsigned log2_bytes, bool tile) {
    static const tj_transpose_fn plain_by[] = {plain_1, plain_2, plain_4, plain_8};
#if defined(__x86_64__)
    static const tj_transpose_fn vectors_by[] = {vectors_1, vectors_2, vectors_4, vectors_8};
    static const tj_transpose_fn far_by[] = {far_1, far_2, far_4, far_8};
    if (level >= TJ_CPU_AVX2) {
        return (tile ? vectors_by : far_by)[log2_bytes & 3];
    }
#endif
    (void)level, (void)tile;
    return plain_by[log2_bytes & 3];
}
