//! Requests to nodes for slots, and the return of slots.
//!
//! `provision` says how many slots the volume wants. This module asks for them: for the same number
//! on every node, because a segment takes one slot on each of its nodes. If a node grants more than
//! the others, the volume gives the excess back, so that two volumes that grow at the same time do
//! not each end with half of the slots that a segment takes. A node may not be able to grant what
//! the others have (it came back after the volume had asked them, say). It then grants what it can.
//! The volume takes that into account, and asks for the rest when room is short.
//!
//! | module    | idea |
//! |-----------|------|
//! | `request` | a request to one node or to several, and the answers |
//! | `grow`    | more slots: on one node, on the nodes that have less, on all |
//! | `release` | fewer slots: for other volumes, and before the volume closes |
//! | `size`    | the slots of a whole device, when it is created or grows |

mod grow;
mod release;
mod request;
mod size;

pub use grow::{
    ask_full_nodes, reserve_at_start, reserve_for_checkpoint, reserve_for_rebuild, reserve_joined,
    reserve_missing, reserve_more, reserve_on_low,
};
pub use release::{release_garbage, release_if_needed, release_spare};
pub use request::{begin_change, refresh_stat, reserve_on};
pub use size::reserve_for_size;
