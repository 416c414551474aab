/* Packets and the memories of the storage policies. crates/nic/src/packet.rs and state.rs are the
 * same layouts in Rust. All numbers are little endian; all fields are at multiples of 4.
 *
 * A message carries one write. Its packets are
 *
 *   first packet:  packet_header  dfs_header  write_header  coordinates[n]  data
 *   others:        packet_header  data
 *
 * With STRATEGY_ELEMENTS the first packet has no data, and each other one is an element of a chunk:
 * DATA_BYTES each.
 *
 * The headers are as in figure 3 of the network-accelerated DFS paper. The packet header stands for
 * the RDMA header. It has the virtual rank, so that a node forwards the other headers unchanged: it
 * finds its own coordinates and those of its children by the rank.
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <stdint.h>

enum {
    DATA_BYTES = 2048,     /* the most data of a packet */
    MAX_COORDINATES = 16,  /* nodes of a write */
    MAX_PARITIES = 4,      /* parity nodes of a write */
    MAX_DATA_NODES = 16,   /* data nodes of a write */
    KEYS = 8,              /* volumes and epochs whose capabilities a NIC checks */
    EXTENTS = 256,         /* segments that a NIC takes writes for */
    EXTENT_TRIES = 8,      /* entries of the extents' table that may have a segment */
    CACHED = 64,           /* checked capabilities that a core remembers */
    GROUPS = 16,           /* parity writes at once */
    ACCUMULATORS = 64,     /* packets of parity at once */
    GROUP_PACKETS = 16,    /* packets of a parity write that the NIC aggregates */
    MAX_ELEMENTS = 15,     /* elements of a chunk: packets of a parity write but the first */
};

struct packet_header {
    uint32_t source;      /* the node that sends it */
    uint32_t destination; /* the node that it is for */
    uint32_t message;     /* with source, names the message */
    uint32_t place;       /* bits 0-15 number in the message from 0 on, 16-23 rank, 24 first,
                           * 25 last. A message has at most 65,536 packets */
    uint32_t offset;      /* place of the data in the write, in bytes. All packets behind the first
                           * but the last have DATA_BYTES, so the number says the place as well */
    uint32_t lengths;     /* bits 0-15 bytes of data, 16-31 bytes of the other headers */
};

enum { PLACE_FIRST = 1u << 24, PLACE_LAST = 1u << 25, PLACE_RANK = 16 };

/* A capability of the store; crates/proto/src/capability.rs says what it means. */
struct capability {
    uint32_t volume[4];
    uint32_t epoch[2];
    uint32_t rights;
    uint32_t segment_first[2];
    uint32_t segment_last[2];
    uint32_t expires[2];
    uint32_t mac[4];
};

enum { CAPABILITY_WORDS = sizeof(struct capability) / 4, RIGHT_WRITE = 2 };

struct dfs_header {
    uint32_t kind;       /* DFS_WRITE */
    uint32_t request[2]; /* the client's number of the request */
    uint32_t client;     /* the node that gets the replies */
    struct capability capability;
};

/* "FS", version 1, write. */
enum { DFS_WRITE = 0x01015346 };

enum strategy {
    STRATEGY_SINGLE = 0, /* one node */
    STRATEGY_RING = 1,   /* node of rank r sends to rank r + 1 */
    STRATEGY_TREE = 2,   /* node of rank r sends to ranks 2r + 1 and 2r + 2 */
    STRATEGY_CODE = 3,   /* rank 0 stores data and encodes; ranks from 1 on aggregate parities */
    STRATEGY_ELEMENTS = 4, /* the same, for a code such as Zigzag: the product of an element of the
                            * data is an element of the parity, perhaps at another place */
};

struct coordinates {
    uint32_t node;
    uint32_t address[2]; /* where the node stores the write */
};

struct write_header {
    uint32_t segment[2];
    uint32_t length; /* bytes of the write */
    uint32_t scheme; /* bits 0-7 strategy, 8-15 k, 16-23 m, 24-31 column of the data node */
    struct coordinates nodes[]; /* k of them, or 1 + m for STRATEGY_CODE and STRATEGY_ELEMENTS */
};

struct reply {
    uint32_t request[2];
    uint32_t status;
    uint32_t node;
};

enum status {
    STATUS_DONE = 0,       /* the node has every byte of the write */
    STATUS_FORGED = 1,     /* no key of this NIC made the capability */
    STATUS_EXPIRED = 2,
    STATUS_RIGHTS = 3,
    STATUS_RANGE = 4,      /* the capability does not cover the segment, or the node has no place
                            * for these bytes of it there */
    STATUS_RETRY = 5,      /* no room; the client tries again later */
    STATUS_INCOMPLETE = 6, /* bytes are missing, or the messages of a parity write disagree */
    STATUS_TOO_LONG = 7,   /* a parity write for the host that is longer than its staging area */
    STATUS_CODE = 8,       /* the data node has no coefficients for the code, or for the column */
};

enum event {
    EVENT_MALFORMED = 1,   /* a packet whose headers contradict; line of the check, source */
    EVENT_STRAY = 2,       /* data that is not in its place of the write; offset, lengths */
    EVENT_INTERRUPTED = 3, /* a client went silent; its request's number */
    EVENT_AGGREGATE = 4,   /* a staged message has ended; its request_id, 1 if it failed. Once for
                            * each message */
    EVENT_GIVEN_UP = 5,    /* a staged message that has ended is of a write that others do not end;
                            * its request_id. After EVENT_AGGREGATE, at most once */
};

enum request_state {
    REQUEST_REFUSED = 0, /* before the header handler accepts it, too */
    REQUEST_OPEN = 1,    /* its packets come */
    REQUEST_ENDED = 2,   /* its completion handler has run; a parity write waits for the others */
    REQUEST_LEFT = 3,    /* its parity write fails by it, or was given up: there is no more to do */
};

/* The entry of a message (the paper's write descriptor of 77 bytes). */
struct request {
    uint32_t scheme;    /* of the write header */
    uint32_t state;     /* enum request_state */
    uint32_t children;  /* how many nodes this one sends to */
    uint32_t child[4];  /* those nodes; unused ones are zero */
    uint32_t places;    /* the rank of the first child, in its place in packet_header.place */
    uint32_t cut;       /* bytes of data in the first packet, less DATA_BYTES */
    uint32_t client;
    uint32_t number[2];
    uint32_t address[2];
    uint32_t length;
    uint32_t received; /* bytes of data so far */
    uint32_t group;    /* parity: 1 + the group's number, and REQUEST_HOST; else 0 */
};

enum { REQUEST_GROUP = 0xff, REQUEST_HOST = 0x100 };

/* When the pool has no room for a parity write, the host aggregates it. Each of its messages goes
 * into the staging area of its entry as it comes: the headers of its first packet, then its data at
 * STAGED_DATA. The areas are in the host's memory after the storage. At EVENT_AGGREGATE the area
 * is complete, or the message has failed. The host adds the messages up, replies to the client, and
 * then has the NIC forget them. At EVENT_GIVEN_UP it replies that the write is incomplete. */
enum { STAGED_DATA = 256 };

/* A key as the control side installs it: the one of proto's MasterKey::derive. `midstate` is the
 * state of SipHash after volume and epoch, which every capability of the key starts with. */
struct key {
    uint32_t volume[4];
    uint32_t epoch[2];
    uint32_t midstate[8];
};

/* Where a segment of a volume is in this node's storage. The segment's entry is one of the
 * EXTENT_TRIES entries from (volume[0] + segment[0]) % EXTENTS on, in a circle. */
struct extent {
    uint32_t volume[4];
    uint32_t segment[2];
    uint32_t base[2]; /* the address of its first byte */
    uint32_t length;  /* bytes; 0 in an unused entry */
};

/* What the control side sets. Tables are in bytes from the start of `tables`. */
struct context {
    uint32_t node;        /* this node */
    uint32_t host_len[2]; /* storage addresses, so those of extents, are below this */
    uint32_t keys;        /* how many of `key` are set */
    struct key key[KEYS];
    uint8_t coefficient[MAX_PARITIES][MAX_DATA_NODES]; /* of parity and column; with elements, of
                                                         * parity and element */
    uint32_t tables_at;   /* from the start of the context to the tables */
    uint32_t staging_len; /* bytes of each staging area, which start at host_len; at most 4 MiB */
    uint32_t code;        /* the coefficients' code as in write_header.scheme: bits 8-15 k, 16-23 m,
                           * 24-31 the column that the tables serve, or ANY_COLUMN; k is 0 without
                           * coefficients */
    struct extent extent[EXTENTS];
    uint32_t elements; /* of a chunk of the code; 0 for a code without */
    uint8_t element[MAX_PARITIES][MAX_ELEMENTS + 1]; /* of parity and element of the data: where the
                                                      * contribution goes */
};

enum { ANY_COLUMN = 0xff };

/* With elements, a coefficient has the place of its element in that of a column. */
_Static_assert(MAX_ELEMENTS < MAX_DATA_NODES && MAX_ELEMENTS < GROUP_PACKETS, "elements have room");

/* Each core has one: an entry has many words, and no other core may see half of a new one. It holds
 * for the keys of the context as it is. */
struct cache {
    uint32_t word[CACHED][CAPABILITY_WORDS]; /* checked capabilities, by a word of their MAC */
};

enum { PREFIX_WORDS = 6 }; /* volume and epoch, which a capability begins with */

/* A parity write, from its first message until its last one ends. A message is part of it if it
 * has the same client and number, and writes the same segment and address. So who may not write
 * there joins no write there, whatever client and number it names. */
struct group {
    uint32_t used;
    uint32_t number[2]; /* the request's number */
    uint32_t client;
    uint32_t prefix[PREFIX_WORDS]; /* volume and epoch of the capability */
    uint32_t segment[2];
    uint32_t address[2]; /* where this node stores the parity */
    uint32_t length;   /* bytes of each message */
    uint32_t packets;  /* packets of each message */
    uint32_t expected; /* messages: one per data node */
    uint32_t scheme;   /* strategy, k and m: the column of write_header.scheme is 0 here */
    uint32_t opened;   /* header handlers so far */
    uint32_t closed;   /* messages that have ended: each counts once */
    uint32_t failed;
    uint32_t host;     /* the host aggregates: the write is long, or the pool had no room */
    uint32_t columns;  /* bits of the data nodes that have opened */
    uint32_t request_id[MAX_DATA_NODES];
    uint32_t where[GROUP_PACKETS];  /* offset and length of each packet, once known */
    uint32_t count[GROUP_PACKETS];  /* data nodes whose packet is in */
    uint32_t accumulator[GROUP_PACKETS]; /* a first packet without data has one, too */
};

struct pool {
    uint32_t lock;
    uint32_t free; /* how many entries of `stack` are valid */
    uint32_t stack[ACCUMULATORS];
    struct group group[GROUPS];
    uint32_t accumulator[ACCUMULATORS][DATA_BYTES / 4]; /* free ones are zero */
};

#endif
