/* SipHash-2-4 with 128 bits of result, from the state after a prefix: the MAC of capabilities.
 *
 * The 64-bit words of the state are pairs of 32-bit words, low first: the cores have no longer
 * ones. The algorithm is that of Aumasson and Bernstein's paper, and its 128-bit variant that of
 * their reference code.
 */
#ifndef SIPHASH_H
#define SIPHASH_H

#include <stdint.h>

struct sip_state {
    uint32_t v[8]; /* v0 low, v0 high, v1 low, ... */
};

/* Each `blocks` word pair is 8 bytes of the message. */
void sip_finish(const uint32_t midstate[8], const uint32_t *blocks, uint32_t count,
                uint32_t mac[4]);

#endif
