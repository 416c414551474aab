//! Text maps: the language that `crushtool -d` writes and `crushtool -c` reads.
//!
//! ```text
//! tunable choose_total_tries 50           # if left out: the value of Tunables::LEGACY
//! device 0 osd.0 class hdd
//! device 1 osd.1 class ssd
//! type 0 osd
//! type 1 host
//! host alpha {                            # the type, then the name
//!     id -1                               # if left out: the first free number from -1 down
//!     id -2 class hdd                     # the number of its shadow of that class
//!     alg straw2                          # uniform, list, tree, straw, straw2
//!     hash 0                              # rjenkins1, the only one; may be left out
//!     item osd.0 weight 1.50000           # if left out: the bucket's sum; 1.0 for devices
//!     item osd.1 weight 2.00000 pos 0     # pos: at that position of the bucket
//! }
//! rule any {
//!     id 0                                # or the old form, `ruleset 0`
//!     type replicated                     # erasure, msr_firstn, msr_indep
//!     min_size 1                          # Ceph 16 needs the two sizes, Ceph 20 ignores them
//!     max_size 10
//!     step take alpha class hdd
//!     step chooseleaf firstn 0 type host  # choose | chooseleaf, firstn | indep; choosemsr 2 ...
//!     step emit                           # also set_choose_tries 100 and the like
//! }
//! choose_args 0 {                         # a pool's number; the default set is 2^64 - 1
//!   {
//!     bucket_id -1
//!     weight_set [ [ 1.00000 2.00000 ] [ 0.50000 2.00000 ] ]
//!     ids [ -11 -12 ]
//!   }
//! }
//! ```
//!
//! The order is: tunables, devices and types in any order; buckets and rules, where names are
//! defined before they are used; choose_args. `#` begins a comment. Names consist of letters,
//! digits, `_`, `.` and `-`. A text is read in two steps: `syntax` parses the words, and `resolve`
//! resolves them.
//!
//! **Numbers.** A weight is read as a 32-bit float, multiplied by 65536 and cut to a whole number,
//! so it keeps 24 significant bits. [`print()`] writes the smallest number of decimals (at least
//! five) that gives the same weight back. If a weight needs more bits, `print` leaves it out where
//! the meaning stays the same; else it cuts the weight to the nearest lower one, with a comment.
//! The number of a set of choose_args is cut to 32 bits, so the default set, -1, can be written as
//! the greatest number of 64 bits.
//!
//! **Differences from crushtool's compiler.** crushtool accepts numbers that do not fit and wraps
//! them (a weight of 65536.0 becomes 0), ids of shadows that collide with others (and makes no
//! shadows), and devices and types that are defined twice. These are errors here. Also an error is
//! a bucket after a rule in a map with classes: it would have no shadows, because these are made
//! before the first rule. On the other hand, crushtool refuses weights above 100.0 for devices and
//! 65535.0 for buckets, so it cannot read back its own print of a cluster with such a device. Here
//! both are allowed.
//!
//! **Parts of a map that text cannot carry.** [`print()`] generates a name for an item without a
//! name, or with a name that the language does not allow. `step noop`, negative values of `set_`
//! steps, rules without steps, and rules of a kind without a keyword (`type 7`) are written and
//! read here, but not by crushtool. Steps that take an item that does not exist, and so have no
//! effect, become comments, and so do sets of choose_args beyond 32 bits. These parts are lost:
//! room for devices without a name, classes that neither a device nor a shadow has, straws and tree
//! nodes that do not follow from the weights, and shadows that do not follow from the classes.

mod error;
mod labels;
mod lexer;
mod order;
mod print;
mod resolve;
mod syntax;
mod weight;

pub use error::{ParseError, Problem};
pub use print::print;

use crate::map::Map;

/// The map that a text describes, with the shadow trees of its classes.
///
/// # Errors
/// The first error, with its place.
pub fn parse(text: &str) -> Result<Map, ParseError> {
    resolve::map(&syntax::parse(text)?)
}

/// The first words of all entries that are not buckets.
const KEYWORDS: [&str; 5] = ["tunable", "device", "type", "rule", "choose_args"];

/// A word that can be a name.
fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

/// A word that can be the name of a type: the first word of a bucket.
fn is_type_name(word: &str, is_device: bool) -> bool {
    is_name(word) && (is_device || !KEYWORDS.contains(&word))
}
