/* The storage policies as handlers: authentication, ring and tree replication, streaming codes.
 *
 * The header handler checks everything that the message's later packets rely on: lengths, ranks,
 * the node's own coordinates, the capability, and that the write's bytes are in the place of its
 * segment. It refuses what does not hold, and the NIC then drops the rest of the message. Ranks
 * only grow from node to node, so no packet goes in a circle, whatever the coordinates say. The
 * payload handler checks that its packet's data is in the place that the packet's number has, and
 * then writes, forwards, encodes or aggregates. The NIC runs it once for each number, and the
 * completion handler after all of them. So if the bytes are as many as the write has, none is
 * missing, and the completion handler replies DONE. (Network-accelerated DFS paper, sections
 * III-VII.)
 */
#include "gf.h"
#include "layout.h"
#include "nic.h"
#include "siphash.h"

enum {
    HEADERS_BYTES = sizeof(struct dfs_header) + sizeof(struct write_header),
    SIGNED_BYTES = 52,
    SPIN_LIMIT = 100000,   /* turns that a handler waits for the pool's lock */
};

/* A function of its own: its registers are saved when it is called, not in each run of a handler. */
#define RARE __attribute__((noinline))

static uint32_t strategy(uint32_t scheme)
{
    return scheme & 0xff;
}

/* Whether data nodes and parity nodes take part. */
static int is_code(uint32_t scheme)
{
    return strategy(scheme) >= STRATEGY_CODE;
}

static uint32_t scheme_k(uint32_t scheme)
{
    return (scheme >> 8) & 0xff;
}

static uint32_t scheme_m(uint32_t scheme)
{
    return (scheme >> 16) & 0xff;
}

static uint32_t without_column(uint32_t scheme)
{
    return scheme & 0xffffff;
}

static uint32_t scheme_column(uint32_t scheme)
{
    return scheme >> 24;
}

static const struct packet_header *header_of(const struct nic_task *task)
{
    return (const struct packet_header *)task->packet;
}

static uint32_t data_len(const struct packet_header *packet)
{
    return packet->lengths & 0xffff;
}

static uint32_t headers_len(const struct packet_header *packet)
{
    return packet->lengths >> 16;
}

static uint32_t rank(const struct packet_header *packet)
{
    return (packet->place >> PLACE_RANK) & 0xff;
}

static const uint8_t *data_of(const struct packet_header *packet)
{
    return (const uint8_t *)(packet + 1) + headers_len(packet);
}

/* a < b, for numbers of two words */
static int less(const uint32_t a[2], const uint32_t b[2])
{
    return a[1] != b[1] ? a[1] < b[1] : a[0] < b[0];
}

static void reply(const struct nic_task *task, uint32_t client, const uint32_t number[2],
                  uint32_t status)
{
    struct reply *reply = (struct reply *)task->scratch;
    reply->request[0] = number[0];
    reply->request[1] = number[1];
    reply->status = status;
    reply->node = task->context->node;
    nic_send(client, task->request_id << 3, PLACE_FIRST | PLACE_LAST, 0, sizeof *reply, NULL,
             reply);
}

/* Whether this capability was checked before. Every word is compared, in a time that does not
 * depend on their values. */
static int is_cached(const struct cache *cache, const uint32_t *words)
{
    const uint32_t *known = cache->word[words[CAPABILITY_WORDS - 1] % CACHED];
    uint32_t different = 0;
#pragma GCC unroll 17 /* words: turns of a loop cost as much as what it does */
    for (uint32_t i = 0; i < CAPABILITY_WORDS; i++)
        different |= known[i] ^ words[i];
    /* An unused entry is zero; no key makes the MAC of a capability without rights useful. */
    return different == 0;
}

static const struct key *find_key(const struct context *context, const uint32_t *prefix)
{
    for (uint32_t i = 0; i < context->keys && i < KEYS; i++) {
        const uint32_t *key = context->key[i].volume;
        uint32_t different = 0;
#pragma GCC unroll 6
        for (uint32_t w = 0; w < PREFIX_WORDS; w++)
            different |= key[w] ^ prefix[w];
        if (different == 0)
            return &context->key[i];
    }
    return NULL;
}

/* Checks the MAC, and remembers the capability. */
static RARE int is_signed(const struct nic_task *task, const uint32_t *words)
{
    const struct key *key = find_key(task->context, words);
    if (key == NULL)
        return 0;
    uint32_t blocks[8], mac[4];
#pragma GCC unroll 7
    for (uint32_t i = 0; i < 7; i++)
        blocks[i] = words[PREFIX_WORDS + i];
    blocks[7] = (uint32_t)SIGNED_BYTES << 24;
    sip_finish(key->midstate, blocks, 4, mac);
    uint32_t different = 0;
    for (uint32_t i = 0; i < 4; i++)
        different |= mac[i] ^ words[PREFIX_WORDS + 7 + i];
    if (different != 0)
        return 0;
    uint32_t *known = task->cache->word[words[CAPABILITY_WORDS - 1] % CACHED];
#pragma GCC unroll 17
    for (uint32_t i = 0; i < CAPABILITY_WORDS; i++)
        known[i] = words[i];
    return 1;
}

static enum status authenticate(const struct nic_task *task, const struct capability *capability,
                                const uint32_t segment[2])
{
    const uint32_t *words = capability->volume;
    const uint32_t now[2] = {task->now_low, task->now_high};
    if (!is_cached(task->cache, words) && !is_signed(task, words))
        return STATUS_FORGED;
    if (!less(now, capability->expires))
        return STATUS_EXPIRED;
    if ((capability->rights & RIGHT_WRITE) == 0)
        return STATUS_RIGHTS;
    if (less(segment, capability->segment_first) || less(capability->segment_last, segment))
        return STATUS_RANGE;
    return STATUS_DONE;
}

/* Takes the pool's lock; 0 if others kept it too long. */
static int lock(struct pool *pool)
{
    for (uint32_t i = 0; i < SPIN_LIMIT; i++) {
        if (nic_atomic_swap(&pool->lock, 1) == 0)
            return 1;
    }
    return 0;
}

static void unlock(struct pool *pool)
{
    nic_atomic_swap(&pool->lock, 0);
}

static struct group *group_of(const struct nic_task *task)
{
    return &task->pool->group[((task->request->group & REQUEST_GROUP) - 1) % GROUPS];
}

/* Whether the group is that of the parity write that these headers are part of. `own` is this
 * node's place of the parity. The capability is checked. */
static int is_of(const struct group *group, const struct dfs_header *dfs,
                 const struct write_header *write, const struct coordinates *own)
{
    const uint32_t *prefix = dfs->capability.volume;
    uint32_t different = group->client ^ dfs->client;
    for (uint32_t i = 0; i < 2; i++) {
        different |= group->number[i] ^ dfs->request[i];
        different |= group->segment[i] ^ write->segment[i];
        different |= group->address[i] ^ own->address[i];
    }
    for (uint32_t i = 0; i < PREFIX_WORDS; i++)
        different |= group->prefix[i] ^ prefix[i];
    return different == 0;
}

/* The group of the parity write that these headers are part of; an unused one if there is none;
 * NULL if all are used. */
static struct group *find_group(struct pool *pool, const struct dfs_header *dfs,
                                const struct write_header *write, const struct coordinates *own)
{
    struct group *unused = NULL;
    for (uint32_t i = 0; i < GROUPS; i++) {
        struct group *group = &pool->group[i];
        if (group->used == 0)
            unused = group;
        else if (is_of(group, dfs, write, own))
            return group;
    }
    return unused;
}

/* Forgets a parity write whose messages are all closed. The pool is locked. */
static void close_group(const struct nic_task *task, struct group *group)
{
    struct pool *pool = task->pool;
    for (uint32_t i = 0; !group->host && i < group->packets && i < GROUP_PACKETS; i++) {
        uint32_t accumulator = group->accumulator[i] % ACCUMULATORS;
        uint32_t *word = pool->accumulator[accumulator];
        for (uint32_t w = 0; w < DATA_BYTES / 4; w++)
            word[w] = 0;
        if (pool->free < ACCUMULATORS)
            pool->stack[pool->free++] = accumulator;
    }
    uint32_t *word = (uint32_t *)group;
    for (uint32_t i = 0; i < sizeof *group / 4; i++)
        word[i] = 0;
}

/* The first message of a parity write: takes accumulators, or leaves the work to the host. */
static void open_group(struct pool *pool, struct group *group, const struct dfs_header *dfs,
                       const struct write_header *write, const struct coordinates *own,
                       uint32_t first_len)
{
    uint32_t rest = write->length - first_len;
    uint32_t packets = 1 + rest / DATA_BYTES + (rest % DATA_BYTES != 0);
    const uint32_t *prefix = dfs->capability.volume;
    group->used = 1;
    for (uint32_t i = 0; i < 2; i++) {
        group->number[i] = dfs->request[i];
        group->segment[i] = write->segment[i];
        group->address[i] = own->address[i];
    }
    group->client = dfs->client;
    for (uint32_t i = 0; i < PREFIX_WORDS; i++)
        group->prefix[i] = prefix[i];
    group->length = write->length;
    group->packets = packets;
    group->expected = scheme_k(write->scheme);
    group->scheme = without_column(write->scheme);
    if (packets > GROUP_PACKETS || packets > pool->free) {
        group->host = 1;
        return;
    }
    for (uint32_t i = 0; i < packets; i++)
        group->accumulator[i] = pool->stack[--pool->free];
}

/* Whether a message of this write may join the group. */
static enum status may_join(const struct nic_task *task, const struct group *group,
                            const struct write_header *write)
{
    uint32_t room = task->context->staging_len;
    if (group->scheme != without_column(write->scheme) || group->length != write->length)
        return STATUS_INCOMPLETE;
    if (group->columns & 1u << scheme_column(write->scheme))
        return STATUS_RETRY;
    if (group->host && (room < STAGED_DATA || write->length > room - STAGED_DATA))
        return STATUS_TOO_LONG;
    return STATUS_DONE;
}

/* Joins the parity write that this message is part of. */
static RARE enum status join_group(const struct nic_task *task, const struct dfs_header *dfs,
                              const struct write_header *write, const struct coordinates *own,
                              uint32_t first_len)
{
    struct pool *pool = task->pool;
    if (!lock(pool))
        return STATUS_RETRY;
    struct group *group = find_group(pool, dfs, write, own);
    enum status status = STATUS_RETRY;
    if (group != NULL) {
        if (group->used == 0)
            open_group(pool, group, dfs, write, own, first_len);
        status = may_join(task, group, write);
    }
    if (status == STATUS_DONE) {
        group->columns |= 1u << scheme_column(write->scheme);
        group->request_id[group->opened++ % MAX_DATA_NODES] = task->request_id;
        task->request->group =
            ((uint32_t)(group - pool->group) + 1) | (group->host ? REQUEST_HOST : 0);
    } else if (group != NULL && group->opened == 0) {
        close_group(task, group);
    }
    unlock(pool);
    return status;
}

/* The line of the first check that the headers fail, or 0. */
static uint32_t malformed(const struct nic_task *task, const struct packet_header *packet,
                          const struct write_header *write, uint32_t kind)
{
    uint32_t scheme = write->scheme, k = scheme_k(scheme), m = scheme_m(scheme);
    uint32_t nodes = k;
    if (kind != DFS_WRITE)
        return __LINE__;
    if (k == 0)
        return __LINE__;
    if (is_code(scheme)) {
        nodes = 1 + m;
        if (m == 0 || m > MAX_PARITIES || k > MAX_DATA_NODES || scheme_column(scheme) >= k)
            return __LINE__;
        if (strategy(scheme) != STRATEGY_CODE &&
            (strategy(scheme) != STRATEGY_ELEMENTS || data_len(packet) != 0 ||
             write->length % DATA_BYTES != 0))
            return __LINE__;
    } else if (strategy(scheme) == STRATEGY_SINGLE && k != 1) {
        return __LINE__;
    }
    if (nodes > MAX_COORDINATES ||
        headers_len(packet) != HEADERS_BYTES + nodes * sizeof(struct coordinates))
        return __LINE__;
    if (rank(packet) >= nodes || write->nodes[rank(packet)].node != task->context->node)
        return __LINE__;
    if (packet->offset != 0 || write->length == 0 || data_len(packet) > write->length)
        return __LINE__;
    return 0;
}

/* Whether the write's bytes are inside of its segment on this node. The capability, which is
 * checked, says which segments of the volume may be written; where they are, the context alone
 * says. */
static int is_in_extent(const struct context *context, const uint32_t volume[4],
                        const struct write_header *write, const struct coordinates *own)
{
    const uint32_t *segment = write->segment;
    uint32_t at = volume[0] + segment[0];
    for (uint32_t tries = EXTENT_TRIES; tries != 0; tries--) {
        const struct extent *extent = &context->extent[at++ % EXTENTS];
        uint32_t different = (extent->segment[0] ^ segment[0]) | (extent->segment[1] ^ segment[1]);
        different |= (extent->volume[0] ^ volume[0]) | (extent->volume[1] ^ volume[1]);
        different |= (extent->volume[2] ^ volume[2]) | (extent->volume[3] ^ volume[3]);
        if (different == 0) {
            uint32_t low = own->address[0] - extent->base[0];
            uint32_t borrow = own->address[0] < extent->base[0];
            return own->address[1] == extent->base[1] + borrow &&
                   write->length <= extent->length && low <= extent->length - write->length;
        }
    }
    return 0;
}

/* Whether this node's coefficients and tables are those of the scheme: its code, and its column. A
 * write of `length` bytes has the elements that the code has. */
static int has_code(const struct context *context, uint32_t scheme, uint32_t length)
{
    uint32_t column = scheme_column(context->code);
    uint32_t elements = strategy(scheme) == STRATEGY_ELEMENTS ? length / DATA_BYTES : 0;
    return elements == context->elements && elements <= MAX_ELEMENTS &&
           scheme_k(scheme) == scheme_k(context->code) &&
           scheme_m(scheme) == scheme_m(context->code) &&
           (column == ANY_COLUMN || column == scheme_column(scheme));
}

/* What a node of a code checks before it accepts a message. A parity node adds up what data nodes
 * send, whatever their coefficients. */
static enum status admit(const struct nic_task *task, const struct packet_header *packet,
                         const struct dfs_header *dfs, const struct write_header *write)
{
    if (rank(packet) != 0)
        return join_group(task, dfs, write, &write->nodes[rank(packet)], data_len(packet));
    int has = has_code(task->context, write->scheme, write->length);
    return has ? STATUS_DONE : STATUS_CODE;
}

static void set_children(struct request *request, const struct packet_header *packet,
                         const struct write_header *write)
{
    uint32_t scheme = write->scheme, nodes = scheme_k(scheme), count = 0;
    uint32_t first = rank(packet) + 1;
    switch (strategy(scheme)) {
    case STRATEGY_RING:
        count = first < nodes;
        break;
    case STRATEGY_TREE:
        first = 2 * rank(packet) + 1;
        count = first >= nodes ? 0 : 1 + (first + 1 < nodes);
        break;
    case STRATEGY_CODE:
    case STRATEGY_ELEMENTS:
        count = rank(packet) == 0 ? scheme_m(scheme) : 0;
        break;
    default:
        break;
    }
    for (uint32_t i = 0; i < count; i++)
        request->child[i] = write->nodes[first + i].node;
    request->children = count;
    request->places = first << PLACE_RANK;
}

/* The message goes into the staging area of its entry, this packet's headers first. */
static void stage(const struct nic_task *task, const struct packet_header *packet)
{
    const struct context *context = task->context;
    struct request *request = task->request;
    uint32_t at = NIC_SLOT(task->request_id) * context->staging_len;
    uint32_t low = context->host_len[0] + at;
    uint32_t high = context->host_len[1] + (low < at);
    nic_to_host(packet, sizeof *packet + headers_len(packet), low, high);
    request->address[0] = low + STAGED_DATA;
    request->address[1] = high + (request->address[0] < STAGED_DATA);
}

uint32_t header_handler(const struct nic_task *task)
{
    const struct packet_header *packet = header_of(task);
    const struct dfs_header *dfs = (const struct dfs_header *)(packet + 1);
    const struct write_header *write = (const struct write_header *)(dfs + 1);
    if (task->packet_len < sizeof *packet + HEADERS_BYTES || data_len(packet) > DATA_BYTES ||
        task->packet_len != sizeof *packet + headers_len(packet) + data_len(packet) ||
        headers_len(packet) % 4 != 0) {
        nic_event(EVENT_MALFORMED, __LINE__, task->packet_len < 4 ? 0 : packet->source);
        return NIC_REFUSE;
    }
    uint32_t line = malformed(task, packet, write, dfs->kind);
    if (line != 0) {
        nic_event(EVENT_MALFORMED, line, packet->source);
        return NIC_REFUSE;
    }
    const struct coordinates *own = &write->nodes[rank(packet)];
    const struct capability *capability = &dfs->capability;
    enum status status = authenticate(task, capability, write->segment);
    if (status == STATUS_DONE && !is_in_extent(task->context, capability->volume, write, own))
        status = STATUS_RANGE;
    if (status == STATUS_DONE && is_code(write->scheme))
        status = admit(task, packet, dfs, write);
    if (status != STATUS_DONE) {
        reply(task, dfs->client, dfs->request, status);
        return NIC_REFUSE;
    }
    struct request *request = task->request;
    request->scheme = write->scheme;
    request->client = dfs->client;
    request->number[0] = dfs->request[0];
    request->number[1] = dfs->request[1];
    request->address[0] = own->address[0];
    request->address[1] = own->address[1];
    request->length = write->length;
    request->cut = data_len(packet) - DATA_BYTES;
    if (request->group & REQUEST_HOST)
        stage(task, packet);
    set_children(request, packet, write);
    request->state = REQUEST_OPEN;
    return NIC_ACCEPT;
}

/* Where the data of this packet goes. */
static void host_address(const struct request *request, uint32_t offset, uint32_t address[2])
{
    address[0] = request->address[0] + offset;
    address[1] = request->address[1] + (address[0] < offset);
}

static void forward(const struct nic_task *task, const struct packet_header *packet)
{
    const struct request *request = task->request;
    const uint8_t *data = data_of(packet);
    uint32_t place = (packet->place & ~(0xffu << PLACE_RANK)) + request->places;
    for (uint32_t i = 0; i < request->children; i++) {
        nic_send(request->child[i], (task->request_id << 3) + i, place, packet->offset,
                 packet->lengths, packet + 1, data);
        place += 1u << PLACE_RANK;
    }
}

/* A data node: its products with the coefficients of each parity, one for each parity node. In a
 * code with elements, the packet is an element, and each product is an element of the parity's
 * chunk, perhaps at another place. The first packet has no data then, and goes on as it is. */
static void encode(const struct nic_task *task, const struct packet_header *packet)
{
    const struct request *request = task->request;
    const struct context *context = task->context;
    uint32_t len = data_len(packet), parities = request->children;
    uint32_t has_elements = strategy(request->scheme) == STRATEGY_ELEMENTS;
    uint32_t element = ((packet->place & 0xffff) - 1) % (MAX_ELEMENTS + 1);
    uint32_t at = has_elements ? element : scheme_column(request->scheme);
    uint8_t *out[MAX_PARITIES];
    for (uint32_t i = 0; i < parities; i++)
        out[i] = task->scratch + i * DATA_BYTES;
    gf_encode((const uint8_t *)context + context->tables_at, &context->coefficient[0][at], parities,
              data_of(packet), len, out);
    uint32_t place = (packet->place & ~(0xffu << PLACE_RANK)) + request->places;
    uint32_t offset = packet->offset;
    for (uint32_t i = 0; i < parities; i++) {
        if (has_elements && len != 0) {
            uint32_t to = context->element[i][element];
            uint32_t last = to + 1 == context->elements ? PLACE_LAST : 0;
            place = (place & (0xffu << PLACE_RANK)) | last | (to + 1);
            offset = to * DATA_BYTES;
        }
        nic_send(request->child[i], (task->request_id << 3) + i, place, offset, packet->lengths,
                 packet + 1, out[i]);
        place += 1u << PLACE_RANK;
    }
}

static void xor_into(uint32_t *to, const uint8_t *data, uint32_t len)
{
    const uint32_t *from = (const uint32_t *)data;
    for (uint32_t words = len / 4; words != 0; words--)
        nic_atomic_xor(to++, *from++);
    if (len % 4 != 0)
        nic_atomic_xor(to, *from & ((1u << (len % 4 * 8)) - 1));
}

/* A parity node: adds this packet to its accumulator, and stores the sum once it is whole. */
static void aggregate(const struct nic_task *task, const struct packet_header *packet)
{
    const struct request *request = task->request;
    struct group *group = group_of(task);
    uint32_t index = packet->place & 0xffff, len = data_len(packet);
    if (index == 0 && len == 0 && strategy(request->scheme) == STRATEGY_ELEMENTS)
        return;
    if (index >= group->packets || index >= GROUP_PACKETS || len == 0) {
        group->failed = 1;
        return;
    }
    /* All data nodes cut their packets alike; the first to come says how. The bit keeps offset 0
     * apart from an unused entry. Parity writes have at most GROUP_PACKETS packets. */
    uint32_t where = 1u << 31 | packet->offset << 12 | len;
    uint32_t before = nic_atomic_max(&group->where[index], where);
    if (before != 0 && before != where) {
        group->failed = 1;
        return;
    }
    uint32_t *accumulator = task->pool->accumulator[group->accumulator[index] % ACCUMULATORS];
    xor_into(accumulator, data_of(packet), len);
    if (nic_atomic_add(&group->count[index], 1) + 1 == group->expected && !group->failed) {
        uint32_t address[2];
        host_address(request, packet->offset, address);
        nic_to_host(accumulator, len, address[0], address[1]);
    }
}

uint32_t payload_handler(const struct nic_task *task)
{
    const struct packet_header *packet = header_of(task);
    struct request *request = task->request;
    uint32_t len = data_len(packet), offset = packet->offset;
    uint32_t headers = packet->place & PLACE_FIRST ? headers_len(packet) : 0;
    uint32_t number = packet->place & 0xffff;
    uint32_t at = number == 0 ? 0 : request->cut + number * DATA_BYTES;
    if (request->state != REQUEST_OPEN)
        return 0;
    if (task->packet_len != sizeof *packet + headers_len(packet) + len ||
        headers != headers_len(packet) || len > DATA_BYTES || len > request->length ||
        offset != at || offset > request->length - len) {
        nic_event(EVENT_STRAY, offset, packet->lengths);
        return 0;
    }
    nic_atomic_add(&request->received, len);
    if (request->group != 0 && (request->group & REQUEST_HOST) == 0) {
        aggregate(task, packet);
        return 0;
    }
    if (len != 0) {
        uint32_t address[2];
        host_address(request, offset, address);
        nic_to_host(data_of(packet), len, address[0], address[1]);
    }
    if (is_code(request->scheme) && request->children != 0)
        encode(task, packet);
    else
        forward(task, packet);
    return 0;
}

/* Whether the group still has this message: one that the host aggregates outlives its group. */
static int has_message(const struct group *group, uint32_t request_id)
{
    for (uint32_t i = 0; i < group->opened && i < MAX_DATA_NODES; i++) {
        if (group->request_id[i] == request_id)
            return 1;
    }
    return 0;
}

/* The last message of a parity write has ended: replies for all, and forgets them. What the host
 * aggregates, it replies to. The pool is locked. */
static void end_group(const struct nic_task *task, struct group *group)
{
    if (!group->host) {
        reply(task, group->client, group->number,
              group->failed ? STATUS_INCOMPLETE : STATUS_DONE);
        for (uint32_t i = 0; i < group->opened && i < MAX_DATA_NODES; i++)
            nic_free(group->request_id[i]);
    }
    close_group(task, group);
}

/* A message of a parity write ends, or it is cleaned up. Each counts once: the cleanup of one that
 * has ended, and waits for a silent data node, fails the write and no more. The CPU hears once that
 * a staged message has ended; after that, only that its write is given up, if it waits for others.
 */
static void leave_group(const struct nic_task *task, uint32_t failed)
{
    struct request *request = task->request;
    struct pool *pool = task->pool;
    struct group *group = group_of(task);
    uint32_t staged = request->group & REQUEST_HOST;
    if (!lock(pool))
        return;
    uint32_t ends = request->state < REQUEST_ENDED;
    uint32_t waits = has_message(group, task->request_id);
    request->state = failed ? REQUEST_LEFT : REQUEST_ENDED;
    if (waits) {
        group->failed |= failed;
        group->closed += ends;
        if (group->closed == group->expected ||
            (group->failed && group->closed == group->opened))
            end_group(task, group);
    }
    unlock(pool);
    if (staged && ends)
        nic_event(EVENT_AGGREGATE, task->request_id, failed);
    else if (staged && waits)
        nic_event(EVENT_GIVEN_UP, task->request_id, 0);
}

uint32_t completion_handler(const struct nic_task *task)
{
    struct request *request = task->request;
    uint32_t failed = request->received != request->length;
    if (request->state != REQUEST_OPEN)
        return 0;
    if (request->group != 0) {
        leave_group(task, failed);
        return 0;
    }
    reply(task, request->client, request->number, failed ? STATUS_INCOMPLETE : STATUS_DONE);
    nic_free(task->request_id);
    return 0;
}

uint32_t cleanup_handler(const struct nic_task *task)
{
    const struct request *request = task->request;
    uint32_t state = request->state;
    if (state == REQUEST_LEFT)
        return 0;
    /* The CPU has a staged message that has ended. Of a header handler that was stopped, there may
     * be no number. */
    if (state == REQUEST_OPEN || (state == REQUEST_ENDED && !(request->group & REQUEST_HOST)))
        nic_event(EVENT_INTERRUPTED, request->number[0], request->number[1]);
    if (request->group != 0)
        leave_group(task, 1);
    else
        nic_free(task->request_id);
    return 0;
}
