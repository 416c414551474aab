// Types and layouts of the CRUSH unit.
//
// **Image.** The host compiles a map (crates/fpga, image) and loads the image as one sequence of
// bytes:
//
//   header (64 B) | buckets (16 B each) | slots (16 B each, buckets start at multiples of
//   16 slots) | reweights (4 B each) | rules (8 B each) | steps (8 B each)
//
// Every section is padded to 64 bytes. Bucket -1 - i is entry i of its section, and rule i is entry
// i of its own. All fields are little-endian. The packed structures below are the bytes read as one
// number, so the last member is in the lowest bits.
//
// **Slots** are the input of a kernel, LANES of them per beat, in the order in which the kernel
// draws:
//
//   straw2   one per item: hash id, reciprocal of the weight
//   straw    one per item: hash id = item, straw
//   list     one per item, newest first: hash id = item, weight, sum
//   tree     one per inner node in heap order (slot 1 is the root, slot 0 unused): hash id = node
//            number, weight of the node, weight of its left child; the items follow, from the next
//            multiple of 16 slots on, in the order of the leaves
//   uniform  one per item; slot p holds the short reciprocal of size - p
//
// A straw2 bucket with weight sets has one group of slots per position, `stride_rows` apart.
//
// **Reciprocals.** floor(n / w) = (n * multiplier) >> (48 + shift) for every n <= 2^48. Here shift
// = ceil(log2 w) and multiplier = ceil(2^(48 + shift) / w). The multiplier has 49 bits, and its
// highest bit is always set. The short reciprocal has 32 instead of 48, for n < 2^32; its
// multiplier has 33 bits.

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package crush_pkg;
  localparam int unsigned ROW_SLOTS = 16;
  localparam int unsigned TAG_BITS = 8;

  localparam logic [2:0] ALG_UNIFORM = 3'd1;
  localparam logic [2:0] ALG_LIST = 3'd2;
  localparam logic [2:0] ALG_TREE = 3'd3;
  localparam logic [2:0] ALG_STRAW = 3'd4;
  localparam logic [2:0] ALG_STRAW2 = 3'd5;

  localparam logic [31:0] ITEM_UNDEF = 32'h7fff_fffe;
  localparam logic [31:0] ITEM_NONE = 32'h7fff_ffff;

  typedef logic [TAG_BITS-1:0] tag_t;

  // The first beat of an image.
  typedef struct packed {
    logic [31:0]   crc;           // CRC32C of the image, with this field as 0
    logic [231:0]  unused;
    logic [7:0]    vary_r;        // chooseleaf_vary_r
    logic [15:0]   choose_tries;  // choose_total_tries + 1
    logic [4:0][31:0] entries;    // per section: buckets, rows of slots, reweights, rules, steps
    logic [5:0]    unused_flags;
    logic          descend_once;  // chooseleaf_descend_once
    logic          stable;        // chooseleaf_stable
    logic [7:0]    algorithms;    // bit ALG_*: a bucket of the algorithm exists
    logic [15:0]   version;
    logic [31:0]   magic;
  } image_header_t;  // 512 bits
  localparam logic [31:0] IMAGE_MAGIC = 32'h4943_5346;  // "FSCI"
  localparam logic [15:0] IMAGE_VERSION = 16'd1;

  // A bucket, at index -1 - id. 128 bits.
  typedef struct packed {
    logic [31:0]  divides;      // bit n: size is a multiple of n (uniform buckets only, else 0)
    logic [15:0]  stride_rows;  // rows of 16 slots between weight sets
    logic [15:0]  items_row;    // tree: row of 16 slots where the items begin
    logic [15:0]  row;          // row of 16 slots where the slots begin
    logic [15:0]  size;         // items
    logic [7:0]   positions;    // weight sets, 1 to 15
    logic [7:0]   depth;        // tree: levels of inner nodes
    logic [7:0]   kind;         // the bucket's type
    logic         exists;
    logic [3:0]   unused;
    logic [2:0]   algorithm;
  } bucket_t;

  // Numbers that draws use besides the hash.
  typedef struct packed {
    logic         is_zero;  // straw2: weight 0
    logic [5:0]   shift;
    logic [48:0]  multiplier;
  } reciprocal_t;  // 56 bits: straw2, uniform
  localparam int unsigned RECIPROCAL_BITS = 49;
  localparam int unsigned SHORT_RECIPROCAL_BITS = 33;

  typedef struct packed {
    logic [7:0]   kind;     // the item's type: 0 for devices
    logic [55:0]  payload;  // straw2, uniform: reciprocal_t; straw: the straw in the low 32 bits
    logic [31:0]  hash_id;
    logic [31:0]  item;
  } slot_t;  // 128 bits

  // List and tree need two numbers of 32 bits. The item of a list is also its hash id, and the
  // inner nodes of a tree have no item.
  typedef struct packed {
    logic [7:0]   kind;
    logic [23:0]  unused;
    logic [31:0]  first;    // list: sum; tree: weight of the left child
    logic [31:0]  hash_id;  // list: the item; tree: the node number
    logic [31:0]  second;   // list: weight; tree: weight of the node
  } pair_slot_t;

  // A draw that the rule engine requests. r is r_base + ftotal * s. s is 1 for firstn. For indep,
  // s is numrep, or numrep + 1 in uniform buckets whose size is a multiple of numrep.
  typedef struct packed {
    tag_t         tag;
    logic [31:0]  x;
    logic [31:0]  r_base;
    logic [15:0]  ftotal;
    logic         is_indep;
    logic [4:0]   numrep;
    logic [15:0]  bucket;    // its index, -1 - id
    logic [7:0]   position;  // position in the result; selects the weight set
  } choose_t;

  // The slot of an item that does not exist (a leaf of a tree after the last item) holds ITEM_NONE,
  // kind 0: the draw led nowhere.
  typedef struct packed {
    tag_t         tag;
    logic         is_empty;      // the bucket has no items (item and kind are not valid)
    logic         is_bad;        // no such bucket, or its kernel is missing
    logic         is_stretched;  // r is r_base + ftotal * (numrep + 1); leaves start at this r
    logic [7:0]   kind;          // the item's type
    logic [31:0]  item;
  } chosen_t;

  // The steps of a rule. Entry i of the section is for rule i.
  typedef struct packed {
    logic [30:0]  unused;
    logic         exists;  // 0 also for rules that the device cannot run
    logic [15:0]  steps;   // number of steps
    logic [15:0]  first;   // index of the first step
  } rule_t;  // 64 bits

  // Operations of steps, with the numbers of binary maps. `count` and `kind` are as in the map,
  // with these exceptions. A TAKE of an item that does not exist is a NOOP. The two
  // SET_CHOOSE_LOCAL steps are NOOPs if they set 0. A rule that sets them to other values has
  // exists = 0, and so have MSR rules, and rules with tries above 65535 or counts above 31, which
  // do not fit.
  localparam logic [7:0] STEP_NOOP = 8'd0;
  localparam logic [7:0] STEP_TAKE = 8'd1;                  // argument: item
  localparam logic [7:0] STEP_CHOOSE_FIRSTN = 8'd2;         // argument: count, may be <= 0
  localparam logic [7:0] STEP_CHOOSE_INDEP = 8'd3;
  localparam logic [7:0] STEP_EMIT = 8'd4;
  localparam logic [7:0] STEP_CHOOSELEAF_FIRSTN = 8'd6;
  localparam logic [7:0] STEP_CHOOSELEAF_INDEP = 8'd7;
  localparam logic [7:0] STEP_SET_CHOOSE_TRIES = 8'd8;      // argument counts if > 0
  localparam logic [7:0] STEP_SET_CHOOSELEAF_TRIES = 8'd9;  // argument counts if > 0
  localparam logic [7:0] STEP_SET_VARY_R = 8'd12;           // argument counts if >= 0
  localparam logic [7:0] STEP_SET_STABLE = 8'd13;           // argument counts if >= 0

  typedef struct packed {
    logic signed [31:0]  argument;
    logic [15:0]         unused;
    logic [7:0]          kind;  // choose steps: type of the wanted items
    logic [7:0]          op;    // STEP_*
  } step_t;  // 64 bits

  // Fields of a loaded map's header that the rule engine needs.
  typedef struct packed {
    logic [7:0]   algorithms;    // bit ALG_*: a bucket of the algorithm exists
    logic [15:0]  rules;         // slots of rules
    logic [31:0]  devices;       // reweights; higher devices are out
    logic [15:0]  choose_tries;  // tries from the top: choose_total_tries + 1
    logic [7:0]   vary_r;        // chooseleaf_vary_r
    logic         stable;        // chooseleaf_stable
    logic         descend_once;  // chooseleaf_descend_once
  } settings_t;

  // **Kernels.** A kernel draws from the slots of one bucket. The slots come LANES at a time, in
  // beats without back-pressure. Draws follow each other without a gap. Some cycles after a draw's
  // last beat, the kernel gives the position of the winner among the bucket's items, whose slots
  // begin at tag.slot. Draws of one kernel come out in the order in which they went in. All kernels
  // have the same ports, and the reconfigurable partition has these ports, too:
  //
  //   valid_i, beat_i, mask_i, slots_i   a beat; mask_i says which of its slots exist
  //   valid_o, drawn_o                   the result of a draw

  // The kernel returns this tag unchanged.
  typedef struct packed {
    logic         is_stretched;  // see chosen_t
    logic         is_list;       // slots are pair_slot_t, with the item as hash id
    logic [19:0]  slot;          // number of item 0's slot
    tag_t         tag;
  } draw_tag_t;

  typedef struct packed {
    logic         first;   // the draw's first beat
    logic         last;
    draw_tag_t    tag;
    logic [31:0]  x;
    logic [31:0]  r;       // uniform: less than size
    logic [31:0]  bucket;  // id, as unsigned
    logic [15:0]  size;    // number of slots: items; tree: leaves, a power of two
    logic [15:0]  row;     // slots row * LANES and up. Rows ascend from 0; uniform: they descend
                           // from the row of slot r to 0
  } kernel_beat_t;

  typedef struct packed {
    draw_tag_t    tag;
    logic [15:0]  position;
  } drawn_t;

  // Latency of a multiplier in cycles: one for the partial products, which fit into the multipliers
  // of FPGAs (26 by 17 bits unsigned), and one per level of three-operand sums.
  function automatic int unsigned multiplier_stages(input int unsigned a_bits, input int unsigned b_bits);
    int unsigned tiles;
    tiles = ((a_bits + 25) / 26) * ((b_bits + 16) / 17);
    multiplier_stages = 1;
    while (tiles > 1) begin
      tiles = (tiles + 2) / 3;
      multiplier_stages++;
    end
  endfunction

  localparam int unsigned LN_STAGES = 8;
  localparam int unsigned MODULO_STAGES = 6;

  // Number of mixes of the hash of that many words, and its latency in cycles.
  function automatic int unsigned hash_mixes(input int unsigned args);
    return (args == 2) ? 3 : args + 2;
  endfunction
  function automatic int unsigned hash_stages(input int unsigned args, input int unsigned lines_per_stage);
    return hash_mixes(args) * 9 / lines_per_stage;
  endfunction
endpackage
