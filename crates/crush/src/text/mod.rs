//! Text maps: the language that `crushtool -d` writes and `crushtool -c` reads.
//!
//! ```text
//! tunable choose_total_tries 50           # what is not said has the value of Tunables::LEGACY
//! device 0 osd.0 class hdd
//! device 1 osd.1 class ssd
//! type 0 osd
//! type 1 host
//! host alpha {                            # the type, then the name
//!     id -1                               # if left out: the first number from -1 down that is free
//!     id -2 class hdd                     # the number of its shadow of that class
//!     alg straw2                          # uniform, list, tree, straw, straw2
//!     hash 0                              # rjenkins1, the only one; may be left out
//!     item osd.0 weight 1.50000           # if left out: what a bucket's items weigh, 1.0 for devices
//!     item osd.1 weight 2.00000 pos 0     # pos: at that position of the bucket
//! }
//! rule any {
//!     id 0                                # or, as long ago, `ruleset 0`
//!     type replicated                     # erasure, msr_firstn, msr_indep
//!     min_size 1                          # Ceph 16 wants the two sizes, Ceph 20 ignores them
//!     max_size 10
//!     step take alpha class hdd
//!     step chooseleaf firstn 0 type host  # choose | chooseleaf, firstn | indep; choosemsr 2 type host
//!     step emit                           # also set_choose_tries 100 and the like
//! }
//! choose_args 0 {                         # a pool's number; 18446744073709551615 is the default set
//!   {
//!     bucket_id -1
//!     weight_set [ [ 1.00000 2.00000 ] [ 0.50000 2.00000 ] ]
//!     ids [ -11 -12 ]
//!   }
//! }
//! ```
//!
//! In this order: tunables, devices and types in any order; buckets and rules, where names are
//! defined before they are used; choose_args. `#` begins a comment. Names consist of letters,
//! digits, `_`, `.` and `-`. A text is read in two steps: `syntax` knows the words, `meaning` what
//! they stand for.
//!
//! **Numbers.** A weight is read as a 32-bit float, multiplied by 65536 and cut to a whole number,
//! so it keeps 24 significant bits. [`print()`] writes as few decimals as give the same number back
//! but at least five; a weight that needs more bits it leaves out where that means the same, and
//! otherwise cuts to the nearest below, with a comment. The number of a set of choose_args is cut to
//! 32 bits, so the default set, -1, can be written as the greatest number of 64 bits.
//!
//! **Where crushtool takes a text otherwise.** It accepts numbers that do not fit and wraps them
//! (a weight of 65536.0 becomes 0), ids of shadows that collide with others (and makes no shadows),
//! devices and types that are defined twice; these are errors here. So are buckets that follow a
//! rule in a map with classes: they would have no shadows, for these are made before the first rule.
//! On the other hand it refuses weights above 100.0 for devices and 65535.0 for buckets, and so
//! cannot read back what it prints of a cluster with such a device; here both are allowed.
//!
//! **What text cannot say** of a map from elsewhere, [`print()`] handles so: what has no name, or
//! one that is no name of the language, is given one. `step noop`, negative values of `set_` steps,
//! rules without steps, and rules of a kind without a word (`type 7`) are written and read here, but
//! not by crushtool. Steps that take what does not exist, which do nothing, and sets of choose_args
//! beyond 32 bits become comments. Room for devices that are not named, straws and tree nodes other
//! than those that follow from the weights, and shadows other than those that follow from the
//! classes are lost.

mod error;
mod labels;
mod lexer;
mod meaning;
mod order;
mod print;
mod syntax;
mod weight;

pub use error::{ParseError, Problem};
pub use print::print;

use crate::map::Map;

/// The map that a text describes, with the shadow trees of its classes.
///
/// # Errors
/// The first thing that is wrong, and where.
pub fn parse(text: &str) -> Result<Map, ParseError> {
    meaning::map(&syntax::parse(text)?)
}

/// Words with which something else than a bucket begins.
const KEYWORDS: [&str; 5] = ["tunable", "device", "type", "rule", "choose_args"];

/// A word that can be a name.
fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

/// A word that can be the name of a type: a bucket begins with it.
fn is_type_name(word: &str, is_device: bool) -> bool {
    is_name(word) && (is_device || !KEYWORDS.contains(&word))
}
