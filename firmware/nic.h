/* Handlers and the NIC: what a handler gets, and the commands that it gives.
 *
 * The NIC calls one of four functions of the firmware. All get a task:
 *
 *   header_handler      on the first packet of a message; the message's other handlers run after it
 *   payload_handler     once for each packet number, the first and the last included; packets that
 *                       come again reach no handler
 *   completion_handler  once, after the payload handlers of all packets and all their commands
 *   cleanup_handler     instead of the completion, when a message stays incomplete for too long, or
 *                       another handler was stopped, the header handler at any place included
 *
 * A handler runs to its end, on one core. Other cores run handlers at the same time, also those of
 * the same message; memory that they share needs the atomic operations below. Stack, packet,
 * scratch and cache are the core's own. The control side changes the context while no core runs a
 * header handler. A handler may touch its stack, its constants, and of the memory that its task
 * names as much as its message needs (docs/nic.md says which); any other access ends it.
 *
 * Commands are asynchronous. The memory that a command names must stay as it is until the NIC has
 * done the command. The NIC keeps the packet and the scratch memory of a task until all commands of
 * its handlers are done. A core has NIC_COMMAND_SLOTS commands at once; issuing one more waits.
 *
 * The same source is built for the NIC's RV32 cores, where a command is a few stores and a load,
 * and for the host, where it is a call of a function that the program sets.
 */
#ifndef NIC_H
#define NIC_H

#include <stddef.h>
#include <stdint.h>

struct request;
struct context;
struct cache;
struct pool;

/* What a handler works on. The layouts of the memories are in layout.h. */
struct nic_task {
    const uint8_t *packet;  /* the packet, at a multiple of 4 in the core's fast memory */
    uint32_t packet_len;    /* bytes; cleanup and completion get 0 */
    uint32_t request_id;    /* names the message's entry in commands; unique while it is in use.
                             * NIC_SLOT of it is the entry's index */
    struct request *request;       /* the message's entry; zero before its header handler */
    const struct context *context; /* set by the node's control side; handlers read it */
    struct cache *cache;           /* checked capabilities, of this core alone; for header handlers.
                                    * The control side zeroes it when it changes the context */
    struct pool *pool;             /* accumulators of parities, and who uses them */
    uint8_t *scratch;              /* NIC_SCRATCH_BYTES of the core's own, at a multiple of 4 */
    uint32_t now_low, now_high;    /* the node's clock, in nanoseconds */
};

enum { NIC_SCRATCH_BYTES = 8192, NIC_COMMAND_SLOTS = 4 };

#define NIC_SLOT(request_id) ((request_id) & 0xfff)

/* The result of a header handler: whether the NIC keeps the message. */
enum nic_verdict { NIC_REFUSE = 0, NIC_ACCEPT = 1 };

uint32_t header_handler(const struct nic_task *task);
uint32_t payload_handler(const struct nic_task *task);
uint32_t completion_handler(const struct nic_task *task);
uint32_t cleanup_handler(const struct nic_task *task);

/* Kinds of commands, and the words after the kind. */
enum nic_command {
    /* destination, message, place, offset, lengths (as in struct packet_header), headers, data */
    NIC_SEND = 1,
    /* local address, length in bytes, host address low, high */
    NIC_TO_HOST = 2,
    /* code, two arguments: an entry in the event queue of the node's control side */
    NIC_EVENT = 3,
    /* request_id: the NIC forgets the message and zeroes its entry */
    NIC_FREE = 4,
};

#if defined(__riscv)

/* The core's command unit: words of the command, then a load that issues it. */
#define NIC_COMMAND_WORD ((volatile uint32_t *)0x1b200000u)
#define NIC_COMMAND_ISSUE ((volatile uint32_t *)0x1b200040u)

static inline void nic_send(uint32_t destination, uint32_t message, uint32_t place,
                            uint32_t offset, uint32_t lengths, const void *headers,
                            const void *data)
{
    NIC_COMMAND_WORD[0] = NIC_SEND;
    NIC_COMMAND_WORD[1] = destination;
    NIC_COMMAND_WORD[2] = message;
    NIC_COMMAND_WORD[3] = place;
    NIC_COMMAND_WORD[4] = offset;
    NIC_COMMAND_WORD[5] = lengths;
    NIC_COMMAND_WORD[6] = (uint32_t)headers;
    NIC_COMMAND_WORD[7] = (uint32_t)data;
    (void)*NIC_COMMAND_ISSUE;
}

static inline void nic_to_host(const void *local, uint32_t len, uint32_t low, uint32_t high)
{
    NIC_COMMAND_WORD[0] = NIC_TO_HOST;
    NIC_COMMAND_WORD[1] = (uint32_t)local;
    NIC_COMMAND_WORD[2] = len;
    NIC_COMMAND_WORD[3] = low;
    NIC_COMMAND_WORD[4] = high;
    (void)*NIC_COMMAND_ISSUE;
}

static inline void nic_event(uint32_t code, uint32_t first, uint32_t second)
{
    NIC_COMMAND_WORD[0] = NIC_EVENT;
    NIC_COMMAND_WORD[1] = code;
    NIC_COMMAND_WORD[2] = first;
    NIC_COMMAND_WORD[3] = second;
    (void)*NIC_COMMAND_ISSUE;
}

static inline void nic_free(uint32_t request_id)
{
    NIC_COMMAND_WORD[0] = NIC_FREE;
    NIC_COMMAND_WORD[1] = request_id;
    (void)*NIC_COMMAND_ISSUE;
}

#else

/* The program's function: words as above; pointers come apart from them, in the order of words. */
typedef void nic_issue_function(const uint32_t *words, const void *first, const void *second);
extern nic_issue_function *nic_issue;

static inline void nic_send(uint32_t destination, uint32_t message, uint32_t place,
                            uint32_t offset, uint32_t lengths, const void *headers,
                            const void *data)
{
    const uint32_t words[8] = {NIC_SEND, destination, message, place, offset, lengths, 0, 0};
    nic_issue(words, headers, data);
}

static inline void nic_to_host(const void *local, uint32_t len, uint32_t low, uint32_t high)
{
    const uint32_t words[8] = {NIC_TO_HOST, 0, len, low, high, 0, 0, 0};
    nic_issue(words, local, NULL);
}

static inline void nic_event(uint32_t code, uint32_t first, uint32_t second)
{
    const uint32_t words[8] = {NIC_EVENT, code, first, second, 0, 0, 0, 0};
    nic_issue(words, NULL, NULL);
}

static inline void nic_free(uint32_t request_id)
{
    const uint32_t words[8] = {NIC_FREE, request_id, 0, 0, 0, 0, 0, 0};
    nic_issue(words, NULL, NULL);
}

#endif

/* Atomic operations on words: single instructions on the NIC's cores. All give the old word. The
 * host, and a core without such instructions, run one handler at a time. */
#if defined(__riscv_atomic)

static inline uint32_t nic_atomic_add(uint32_t *word, uint32_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

static inline uint32_t nic_atomic_swap(uint32_t *word, uint32_t value)
{
    return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
}

static inline void nic_atomic_xor(uint32_t *word, uint32_t value)
{
    (void)__atomic_fetch_xor(word, value, __ATOMIC_RELAXED);
}

/* The word becomes the larger of it and `value`. */
static inline uint32_t nic_atomic_max(uint32_t *word, uint32_t value)
{
    uint32_t old;
    __asm__ volatile("amomaxu.w %0, %2, (%1)" : "=r"(old) : "r"(word), "r"(value) : "memory");
    return old;
}

#else

static inline uint32_t nic_atomic_add(uint32_t *word, uint32_t value)
{
    uint32_t old = *word;
    *word = old + value;
    return old;
}

static inline uint32_t nic_atomic_swap(uint32_t *word, uint32_t value)
{
    uint32_t old = *word;
    *word = value;
    return old;
}

static inline void nic_atomic_xor(uint32_t *word, uint32_t value)
{
    *word ^= value;
}

/* The word becomes the larger of it and `value`. */
static inline uint32_t nic_atomic_max(uint32_t *word, uint32_t value)
{
    uint32_t old = *word;
    *word = old > value ? old : value;
    return old;
}

#endif

#endif
