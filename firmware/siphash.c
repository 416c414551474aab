#include "siphash.h"

#define ADD(a, b)                                 \
    do {                                          \
        uint32_t sum = a##l + b##l;               \
        a##h += b##h + (sum < b##l);              \
        a##l = sum;                               \
    } while (0)

/* b = (b rotated left by n) ^ a, for n below 32 */
#define ROTATE_XOR(b, n, a)                                              \
    do {                                                                 \
        uint32_t high = (b##h << (n)) | (b##l >> (32 - (n)));            \
        uint32_t low = (b##l << (n)) | (b##h >> (32 - (n)));             \
        b##h = high ^ a##h;                                              \
        b##l = low ^ a##l;                                               \
    } while (0)

#define SWAP_HALVES(a)      \
    do {                    \
        uint32_t t = a##l;  \
        a##l = a##h;        \
        a##h = t;           \
    } while (0)

#define ROUND()                    \
    do {                           \
        ADD(v0, v1);               \
        ADD(v2, v3);               \
        ROTATE_XOR(v1, 13, v0);    \
        ROTATE_XOR(v3, 16, v2);    \
        SWAP_HALVES(v0);           \
        ADD(v2, v1);               \
        ADD(v0, v3);               \
        ROTATE_XOR(v1, 17, v2);    \
        ROTATE_XOR(v3, 21, v0);    \
        SWAP_HALVES(v2);           \
    } while (0)

void sip_finish(const uint32_t midstate[8], const uint32_t *blocks, uint32_t count,
                uint32_t mac[4])
{
    uint32_t v0l = midstate[0], v0h = midstate[1], v1l = midstate[2], v1h = midstate[3];
    uint32_t v2l = midstate[4], v2h = midstate[5], v3l = midstate[6], v3h = midstate[7];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t low = *blocks++, high = *blocks++;
        v3l ^= low;
        v3h ^= high;
        ROUND();
        ROUND();
        v0l ^= low;
        v0h ^= high;
    }
    v2l ^= 0xee;
    for (int i = 0; i < 4; i++)
        ROUND();
    mac[0] = v0l ^ v1l ^ v2l ^ v3l;
    mac[1] = v0h ^ v1h ^ v2h ^ v3h;
    v1l ^= 0xdd;
    for (int i = 0; i < 4; i++)
        ROUND();
    mac[2] = v0l ^ v1l ^ v2l ^ v3l;
    mac[3] = v0h ^ v1h ^ v2h ^ v3h;
}
