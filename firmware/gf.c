#include "gf.h"

#include "layout.h"
#include "xpulp.h"

#if !defined(GF_TABLE) && !defined(GF_SCHEDULED) && !defined(GF_PAIRS) && !defined(GF_PLANES)
#error "define GF_TABLE, GF_SCHEDULED, GF_PAIRS or GF_PLANES"
#endif

#if !defined(GF_PAIRS)

static const uint8_t *row(const uint8_t *tables, uint8_t coefficient)
{
    return tables + ((uint32_t)coefficient << 8);
}

/* Any number of parities, one after the other. */
static void encode_one(const uint8_t *products, const uint8_t *data, uint32_t len, uint8_t *out)
{
    for (uint32_t i = 0; i < len; i++)
        out[i] = products[data[i]];
}

#endif

#if defined(GF_TABLE) || defined(GF_SCHEDULED)

#if defined(__riscv)

static void encode_two(const uint8_t *t0, const uint8_t *t1, const uint8_t *data, uint32_t len,
                       uint8_t *out0, uint8_t *out1)
{
    uint32_t x, y;
#if defined(GF_SCHEDULED)
    uint32_t z;
    __asm__ volatile(XPULP_BEGIN
                     P_LBU("%[x]", 1, "%[data]")
                     LP_SETUP("%[len]", 5)
                     P_LBU_RR("%[y]", "%[x]", "%[t0]")
                     P_LBU_RR("%[z]", "%[x]", "%[t1]")
                     P_LBU("%[x]", 1, "%[data]")
                     P_SB("%[y]", 1, "%[o0]")
                     P_SB("%[z]", 1, "%[o1]")
                     XPULP_END
                     : [x] "=&r"(x), [y] "=&r"(y), [z] "=&r"(z), [data] "+r"(data),
                       [o0] "+r"(out0), [o1] "+r"(out1)
                     : [t0] "r"(t0), [t1] "r"(t1), [len] "r"(len)
                     : "memory");
#else
    __asm__ volatile(XPULP_BEGIN
                     LP_SETUP("%[len]", 5)
                     P_LBU("%[x]", 1, "%[data]")
                     P_LBU_RR("%[y]", "%[x]", "%[t0]")
                     P_SB("%[y]", 1, "%[o0]")
                     P_LBU_RR("%[y]", "%[x]", "%[t1]")
                     P_SB("%[y]", 1, "%[o1]")
                     XPULP_END
                     : [x] "=&r"(x), [y] "=&r"(y), [data] "+r"(data), [o0] "+r"(out0),
                       [o1] "+r"(out1)
                     : [t0] "r"(t0), [t1] "r"(t1), [len] "r"(len)
                     : "memory");
#endif
}

static void encode_three(const uint8_t *t0, const uint8_t *t1, const uint8_t *t2,
                         const uint8_t *data, uint32_t len, uint8_t *out0, uint8_t *out1,
                         uint8_t *out2)
{
    uint32_t x, y;
#if defined(GF_SCHEDULED)
    uint32_t z, w;
    __asm__ volatile(XPULP_BEGIN
                     P_LBU("%[x]", 1, "%[data]")
                     LP_SETUP("%[len]", 7)
                     P_LBU_RR("%[y]", "%[x]", "%[t0]")
                     P_LBU_RR("%[z]", "%[x]", "%[t1]")
                     P_LBU_RR("%[w]", "%[x]", "%[t2]")
                     P_LBU("%[x]", 1, "%[data]")
                     P_SB("%[y]", 1, "%[o0]")
                     P_SB("%[z]", 1, "%[o1]")
                     P_SB("%[w]", 1, "%[o2]")
                     XPULP_END
                     : [x] "=&r"(x), [y] "=&r"(y), [z] "=&r"(z), [w] "=&r"(w),
                       [data] "+r"(data), [o0] "+r"(out0), [o1] "+r"(out1), [o2] "+r"(out2)
                     : [t0] "r"(t0), [t1] "r"(t1), [t2] "r"(t2), [len] "r"(len)
                     : "memory");
#else
    __asm__ volatile(XPULP_BEGIN
                     LP_SETUP("%[len]", 7)
                     P_LBU("%[x]", 1, "%[data]")
                     P_LBU_RR("%[y]", "%[x]", "%[t0]")
                     P_SB("%[y]", 1, "%[o0]")
                     P_LBU_RR("%[y]", "%[x]", "%[t1]")
                     P_SB("%[y]", 1, "%[o1]")
                     P_LBU_RR("%[y]", "%[x]", "%[t2]")
                     P_SB("%[y]", 1, "%[o2]")
                     XPULP_END
                     : [x] "=&r"(x), [y] "=&r"(y), [data] "+r"(data), [o0] "+r"(out0),
                       [o1] "+r"(out1), [o2] "+r"(out2)
                     : [t0] "r"(t0), [t1] "r"(t1), [t2] "r"(t2), [len] "r"(len)
                     : "memory");
#endif
}

#endif

void gf_encode(const uint8_t *tables, const uint8_t *coefficients, uint32_t parities,
               const uint8_t *data, uint32_t len, uint8_t *const *out)
{
    if (len == 0)
        return;
#if defined(__riscv)
    if (parities == 2) {
        encode_two(row(tables, coefficients[0]), row(tables, coefficients[MAX_DATA_NODES]), data,
                   len, out[0], out[1]);
        return;
    }
    if (parities == 3) {
        encode_three(row(tables, coefficients[0]), row(tables, coefficients[MAX_DATA_NODES]),
                     row(tables, coefficients[2 * MAX_DATA_NODES]), data, len, out[0], out[1],
                     out[2]);
        return;
    }
#endif
    for (uint32_t p = 0; p < parities; p++)
        encode_one(row(tables, coefficients[p * MAX_DATA_NODES]), data, len, out[p]);
}

#elif defined(GF_PAIRS)

/* Four bytes of data give four bytes of each parity; what is after `len` is not used. */
#if defined(__riscv)

/* An entry has 8 bytes: the products of both halves of a word with this are where theirs are. */
#define ENTRY_BYTES_TWICE 0x00080008u

static void encode_words(const uint8_t *table, const uint8_t *data, uint32_t words,
                         uint32_t *out0, uint32_t *out1, uint32_t *out2)
{
    uint32_t x, a, b, c, d;
    const uint8_t *upper = table + 4;
    /* One turn is 13 instructions for 4 bytes. x is loaded a turn ahead. */
    __asm__ volatile(XPULP_BEGIN
                     P_LW("%[x]", 4, "%[data]")
                     LP_SETUP("%[words]", 13)
                     P_MULU("%[a]", "%[x]", "%[scale]")
                     P_MULHHU("%[b]", "%[x]", "%[scale]")
                     P_LW_RR("%[c]", "%[a]", "%[upper]")
                     P_LW_RR("%[d]", "%[b]", "%[upper]")
                     P_LW_RR("%[a]", "%[a]", "%[table]")
                     P_LW_RR("%[b]", "%[b]", "%[table]")
                     P_LW("%[x]", 4, "%[data]")
                     PV_PACK("%[c]", "%[d]", "%[c]")
                     PV_PACK("%[d]", "%[b]", "%[a]")
                     PV_PACK_HIGH("%[a]", "%[b]", "%[a]")
                     P_SW("%[d]", 4, "%[o0]")
                     P_SW("%[a]", 4, "%[o1]")
                     P_SW("%[c]", 4, "%[o2]")
                     XPULP_END
                     : [x] "=&r"(x), [a] "=&r"(a), [b] "=&r"(b), [c] "=&r"(c), [d] "=&r"(d),
                       [data] "+r"(data), [o0] "+r"(out0), [o1] "+r"(out1), [o2] "+r"(out2)
                     : [table] "r"(table), [upper] "r"(upper), [words] "r"(words),
                       [scale] "r"(ENTRY_BYTES_TWICE)
                     : "memory");
}

/* Two parities: 9 instructions for 4 bytes. */
static void encode_words_two(const uint8_t *table, const uint8_t *data, uint32_t words,
                             uint32_t *out0, uint32_t *out1)
{
    uint32_t x, a, b, c;
    __asm__ volatile(XPULP_BEGIN
                     P_LW("%[x]", 4, "%[data]")
                     LP_SETUP("%[words]", 9)
                     P_MULU("%[a]", "%[x]", "%[scale]")
                     P_MULHHU("%[b]", "%[x]", "%[scale]")
                     P_LW_RR("%[a]", "%[a]", "%[table]")
                     P_LW_RR("%[b]", "%[b]", "%[table]")
                     P_LW("%[x]", 4, "%[data]")
                     PV_PACK("%[c]", "%[b]", "%[a]")
                     PV_PACK_HIGH("%[a]", "%[b]", "%[a]")
                     P_SW("%[c]", 4, "%[o0]")
                     P_SW("%[a]", 4, "%[o1]")
                     XPULP_END
                     : [x] "=&r"(x), [a] "=&r"(a), [b] "=&r"(b), [c] "=&r"(c),
                       [data] "+r"(data), [o0] "+r"(out0), [o1] "+r"(out1)
                     : [table] "r"(table), [words] "r"(words), [scale] "r"(ENTRY_BYTES_TWICE)
                     : "memory");
}

#endif

void gf_encode(const uint8_t *table, const uint8_t *coefficients, uint32_t parities,
               const uint8_t *data, uint32_t len, uint8_t *const *out)
{
    (void)coefficients;
    uint32_t words = (len + 3) / 4;
    if (words == 0)
        return;
#if defined(__riscv)
    if (parities == 2) {
        encode_words_two(table, data, words, (uint32_t *)out[0], (uint32_t *)out[1]);
        return;
    }
    if (parities == 3) {
        encode_words(table, data, words, (uint32_t *)out[0], (uint32_t *)out[1],
                     (uint32_t *)out[2]);
        return;
    }
#endif
    for (uint32_t p = 0; p < parities; p++) {
        for (uint32_t i = 0; i < words * 2; i++) {
            uint32_t pair = data[2 * i] | (uint32_t)data[2 * i + 1] << 8;
            out[p][2 * i] = table[8 * pair + 2 * p];
            out[p][2 * i + 1] = table[8 * pair + 2 * p + 1];
        }
    }
}

#else /* GF_PLANES */

#include "planes.h"

enum { PLANES = 8, BLOCK_BYTES = PLANES * 4 };

/* Any coefficient: product plane i has data plane b if the coefficient times 2^b has bit i. */
static void encode_blocks(uint8_t coefficient, const uint32_t *x, uint32_t blocks, uint32_t *y)
{
    for (; blocks != 0; blocks--, x += PLANES, y += PLANES) {
        uint32_t c = coefficient;
        for (uint32_t i = 0; i < PLANES; i++)
            y[i] = 0;
        for (uint32_t b = 0; b < PLANES; b++) {
            for (uint32_t i = 0; i < PLANES; i++)
                if (c >> i & 1)
                    y[i] ^= x[b];
            c = (c << 1 ^ (c >> 7) * 0x11d) & 0xff;
        }
    }
}

void gf_encode(const uint8_t *tables, const uint8_t *coefficients, uint32_t parities,
               const uint8_t *data, uint32_t len, uint8_t *const *out)
{
    const uint32_t *x = (const uint32_t *)data;
    uint32_t blocks = len / BLOCK_BYTES, rest = blocks * BLOCK_BYTES, column = 0;
    uint32_t *y[MAX_PARITIES];
    for (uint32_t p = 0; p < parities; p++) {
        column |= (uint32_t)coefficients[p * MAX_DATA_NODES] << 8 * p;
        y[p] = (uint32_t *)out[p];
    }
    if (blocks != 0 && !planes_encode(column, x, x + blocks * PLANES, y)) {
        for (uint32_t p = 0; p < parities; p++)
            encode_blocks(coefficients[p * MAX_DATA_NODES], x, blocks, y[p]);
    }
    if (rest == len)
        return;
    for (uint32_t p = 0; p < parities; p++)
        encode_one(row(tables, coefficients[p * MAX_DATA_NODES]), data + rest, len - rest,
                   out[p] + rest);
}

#endif
