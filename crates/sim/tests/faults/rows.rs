//! The rows: every fault, when it begins, how it ends, how it is taken away, and how it is
//! injected.

use bytes::Bytes;
use fieldstone_node::FileId;
use fieldstone_proto::CapabilityError::{Retired, UnknownGeneration};
use fieldstone_proto::{MasterKey, NodeError, NodeIndex, PoolId, ReplyBody, RequestBody};
use fieldstone_sim::disk::NodeFileKind::{Data, Doubt, Journal, Slots, Volume};

use crate::bench::{NODES, Ops};
use crate::corrupt::{
    Part, all_stale, blank_ring, cut, eacces, eio, enospc, erofs, flip, flip_record, flip_used,
    foreign, forge, forge_root, future, lie, lose, never, stale,
};
use crate::verify::Ends::{self, Back, Out, Short, Whole};
use crate::verify::Moment::{self, Closed, Killed, Restarted, Serving};
use crate::verify::Remedy::{Lift, Replace, Restart};
use crate::verify::{Row, verify};

/// Damage on a disk shows when the node's process starts.
const START: &[Moment] = &[Closed, Killed, Restarted];
/// A fault of a running disk or process shows at any time.
const EVER: &[Moment] = &[Closed, Killed, Restarted, Serving];
/// Only after a crash is there anything to damage.
const CRASH: &[Moment] = &[Killed, Restarted];
/// An opening meets the fault.
const OPENING: &[Moment] = &[Closed, Killed];
const LATER: &[Moment] = &[Serving];
const AGAIN: &[Moment] = &[Restarted];

/// A node whose process hangs at its start is not connected. One that hangs later does not answer.
const HANGS: Ends = Out("did not answer in time | not connected yet | the connection is gone");
/// The volume renews a damaged record when it serves. If it already serves, that is at once.
const RENEWED: Ends = Back("cannot be used | the connection is gone");

/// Makes a test of each row, and a list of their names.
macro_rules! rows {
    ($($(#[$note:meta])* $name:ident: $moments:expr, $ends:expr, $remedy:ident,
        |$bench:ident, $node:ident| $inject:expr;)*) => {
        $(
            #[test]
            $(#[$note])*
            fn $name() {
                verify(stringify!($name), &Row {
                    moments: $moments,
                    inject: |$bench, $node| $inject,
                    ends: $ends,
                    remedy: $remedy,
                });
            }
        )*
        /// The names of all rows.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

rows! {
    // Volume records.
    record_magic_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 0);
    record_checksum_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 8);
    record_version_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 12);
    record_volume_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 16);
    record_sequence_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 32);
    record_epoch_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 40);
    record_root_version_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 48);
    record_root_length_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 56);
    record_root_checksum_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 60);
    record_reservation_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 64);
    record_padding_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::Record, 68);
    record_older_flipped: START, RENEWED, Lift, |b, n| flip(b, n, Part::OlderRecord, 40);
    record_both_flipped: START, RENEWED, Lift, |b, n| {
            flip(b, n, Part::Record, 40);
            flip(b, n, Part::OlderRecord, 32);
        };
    record_root_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Record, 4096 + 20);
    record_roots_both_flipped: START, RENEWED, Lift, |b, n| {
            flip(b, n, Part::Record, 4096 + 20);
            flip(b, n, Part::OlderRecord, 4096 + 20);
        };
    record_future_version: START, Out("version 9"), Replace, |b, n| future(b, n, Part::Record);
    record_of_another_volume: START, RENEWED, Lift,
        |b, n| forge(b, n, Part::Record, |r| r[16] ^= 1);
    record_root_too_long: START, RENEWED, Lift, |b, n| forge(b, n, Part::Record, |r| r[59] = 1);
    record_in_wrong_half: START, RENEWED, Lift, |b, n| forge(b, n, Part::Record, |r| r[32] ^= 1);
    record_root_unreadable: START, Back("its root of the volume | the connection is gone"), Lift,
        |b, n| forge_root(b, n, |root| root[0] ^= 1);
    record_root_future_version: START, Back("version 9 | the connection is gone"), Replace,
        |b, n| forge_root(b, n, |root| root[8] = 9);
    record_missing: START, Whole, Lift, |b, n| lose(b, n, Volume);
    record_empty: START, Whole, Lift, |b, n| cut(b, n, Volume, 0);
    record_cut_in_half: START, Whole, Lift, |b, n| cut(b, n, Volume, 2);
    record_stale: START, Whole, Lift, |b, n| stale(b, n, Volume);
    record_reads_eio: START, RENEWED, Lift, |b, n| eio(b, n, Ops::Reads, Some(Volume));
    record_changes_eio: EVER, Out("Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Changes, Some(Volume));
    record_syncs_eio: EVER, Out("Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Syncs, Some(Volume));
    record_enospc: EVER, Out("no space"), Lift, |b, n| enospc(b, n, Ops::Changes, Some(Volume));
    record_erofs: EVER, Out("Read-only"), Lift, |b, n| erofs(b, n, Some(Volume));
    record_eacces: EVER, Out("Permission denied"), Lift, |b, n| eacces(b, n, Some(Volume));
    record_never: EVER, HANGS, Lift, |b, n| never(b, n, Ops::All, Some(Volume));

    // Journals.
    journal_magic_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 0);
    journal_checksum_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 8);
    journal_version_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 12);
    journal_volume_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 16);
    journal_generation_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 32);
    journal_size_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 40);
    journal_padding_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Ring, 48);
    journal_future_version: START, Whole, Lift, |b, n| future(b, n, Part::Ring);
    journal_of_another_generation: START, Whole, Lift,
        |b, n| forge(b, n, Part::Ring, |r| r[33] ^= 1);
    journal_size_wrong: START, Whole, Lift, |b, n| forge(b, n, Part::Ring, |r| r[41] ^= 0x10);
    journal_missing: START, Whole, Lift, |b, n| lose(b, n, Journal);
    journal_empty: START, Whole, Lift, |b, n| cut(b, n, Journal, 0);
    journal_cut_in_half: START, Whole, Lift, |b, n| cut(b, n, Journal, 2);
    journal_stale: START, Whole, Lift, |b, n| stale(b, n, Journal);
    journal_record_header_flipped: &[Killed, Restarted, Serving], Whole, Lift,
        |b, n| flip_record(b, n, 20);
    journal_record_block_flipped: &[Killed, Restarted, Serving], Whole, Lift,
        |b, n| flip_record(b, n, 4096 + 20);
    journal_ring_blank: EVER, Whole, Lift, |b, n| blank_ring(b, n);
    journal_changes_eio: EVER, Out("removing a journal: Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Changes, Some(Journal));
    journal_reads_eio: EVER, Whole, Lift, |b, n| eio(b, n, Ops::Reads, Some(Journal));
    journal_syncs_eio: EVER, Whole, Lift, |b, n| eio(b, n, Ops::Syncs, Some(Journal));
    journal_creations_eio: EVER, Whole, Lift, |b, n| eio(b, n, Ops::Creations, Some(Journal));
    journal_removals_eio_while_used: &[Closed, Killed, Serving], Whole, Lift,
        |b, n| eio(b, n, Ops::Removals, Some(Journal));
    journal_removals_eio: AGAIN, Out("removing a journal: Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Removals, Some(Journal));
    journal_enospc: EVER, Whole, Lift, |b, n| enospc(b, n, Ops::Changes, Some(Journal));
    journal_erofs: EVER, Out("removing a journal: Read-only"), Lift,
        |b, n| erofs(b, n, Some(Journal));
    journal_eacces_while_serving: LATER, Out("removing a journal: Permission denied"), Lift,
        |b, n| eacces(b, n, Some(Journal));
    journal_eacces: START, Whole, Lift, |b, n| eacces(b, n, Some(Journal));
    journal_never_while_serving: LATER, Back("did not answer in time"), Lift,
        |b, n| never(b, n, Ops::All, Some(Journal));
    journal_never: START, HANGS, Lift, |b, n| never(b, n, Ops::All, Some(Journal));

    // Slot headers.
    header_magic_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 0);
    header_checksum_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 8);
    header_version_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 12);
    header_volume_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 16);
    header_segment_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 32);
    header_epoch_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 40);
    header_sequence_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 48);
    header_incarnation_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 56);
    header_first_position_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 64);
    header_end_position_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 72);
    header_slot_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 80);
    header_length_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 84);
    header_shard_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 88);
    header_kind_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 89);
    header_zero_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 90);
    header_stable_below_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 96);
    header_padding_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 104);
    header_checksums_flipped: START, Whole, Lift, |b, n| flip(b, n, Part::Header, 1024);
    header_future_version: START, Out("version 9"), Replace, |b, n| future(b, n, Part::Header);
    header_of_another_volume: START, Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[16] ^= 1);
    header_of_another_slot: START, Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[80] ^= 1);
    header_of_another_node: START, Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[56] ^= 1);
    header_of_another_shard: START, Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[88] ^= 1);
    header_too_long: START, Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[87] = 1);
    header_unknown_kind: START, Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[89] = 7);

    // Open notes.
    note_magic_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 0);
    note_checksum_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 8);
    note_version_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 12);
    note_volume_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 16);
    note_segment_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 32);
    note_epoch_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 40);
    note_sequence_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 48);
    note_incarnation_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 56);
    note_slot_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 64);
    note_shard_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 68);
    note_zero_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 69);
    note_stable_below_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 72);
    note_padding_flipped: CRASH, Whole, Lift, |b, n| flip(b, n, Part::Note, 80);
    note_future_version: CRASH, Out("version 9"), Replace, |b, n| future(b, n, Part::Note);
    note_of_another_slot: CRASH, Whole, Lift, |b, n| forge(b, n, Part::Note, |r| r[64] ^= 1);

    // The file `slots`.
    slots_missing: START, Whole, Lift, |b, n| lose(b, n, Slots);
    slots_empty: START, Whole, Lift, |b, n| cut(b, n, Slots, 0);
    slots_cut_in_half: START, Whole, Lift, |b, n| cut(b, n, Slots, 8);
    slots_stale: START, Whole, Lift, |b, n| stale(b, n, Slots);
    slots_of_another_node: START, Whole, Lift, |b, n| foreign(b, n, Slots);
    slots_reads_eio: START, Short, Restart, |b, n| eio(b, n, Ops::Reads, Some(Slots));
    slots_reads_eio_while_serving: LATER, Short, Lift, |b, n| eio(b, n, Ops::Reads, Some(Slots));
    slots_changes_eio: EVER, Out("Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Changes, Some(Slots));
    slots_syncs_eio: EVER, Out("Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Syncs, Some(Slots));
    slots_enospc: EVER, Short, Lift, |b, n| enospc(b, n, Ops::Changes, Some(Slots));
    slots_erofs: EVER, Out("Read-only"), Lift, |b, n| erofs(b, n, Some(Slots));
    slots_eacces: EVER, Out("Permission denied"), Lift, |b, n| eacces(b, n, Some(Slots));
    slots_never: EVER, HANGS, Lift, |b, n| never(b, n, Ops::All, Some(Slots));

    // The file `data`.
    data_block_flipped: EVER, Whole, Lift, |b, n| b.change(n, Data, |bytes| flip_used(bytes));
    data_missing: START, Out("the data file is missing"), Replace, |b, n| lose(b, n, Data);
    data_empty: EVER, Whole, Lift, |b, n| cut(b, n, Data, 0);
    data_cut_short: EVER, Whole, Lift, |b, n| cut(b, n, Data, 8);
    data_stale: EVER, Whole, Lift, |b, n| stale(b, n, Data);
    data_of_another_node: EVER, Whole, Lift, |b, n| foreign(b, n, Data);
    data_reads_eio: EVER, Short, Lift, |b, n| eio(b, n, Ops::Reads, Some(Data));
    data_changes_eio: EVER, Out("Input/output error"), Lift,
        |b, n| eio(b, n, Ops::Changes, Some(Data));
    data_syncs_eio: EVER, Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Syncs, Some(Data));
    data_enospc: EVER, Out("its disk is full"), Lift, |b, n| enospc(b, n, Ops::Changes, Some(Data));
    data_erofs: EVER, Out("Read-only"), Lift, |b, n| erofs(b, n, Some(Data));
    data_eacces: EVER, Out("Permission denied"), Lift, |b, n| eacces(b, n, Some(Data));
    data_never: EVER, HANGS, Lift, |b, n| never(b, n, Ops::All, Some(Data));

    // The file `doubt`.
    doubt_without_a_cause: START, Whole, Lift, |b, n| b.nodes[n].disk.put(FileId::Doubt, &[]);
    doubt_creation_eio: EVER, Whole, Lift, |b, n| eio(b, n, Ops::Creations, Some(Doubt));
    doubt_removal_eio: START, Whole, Lift, |b, n| eio(b, n, Ops::Removals, Some(Doubt));
    doubt_cannot_be_made_after_a_failed_sync: LATER, Out("Input/output error"), Lift, |b, n| {
            eio(b, n, Ops::Creations, Some(Doubt));
            eio(b, n, Ops::Syncs, None);
        };

    // The whole disk.
    disk_reads_eio_while_serving: LATER, Short, Lift, |b, n| eio(b, n, Ops::Reads, None);
    disk_everything_eio: EVER, Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::All, None);
    disk_reads_eio: START, Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Reads, None);
    disk_changes_eio: EVER, Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Changes, None);
    disk_syncs_eio: EVER, Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Syncs, None);
    disk_list_eio: START, Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::List, None);
    disk_enospc: EVER, Out("no space"), Lift, |b, n| enospc(b, n, Ops::Changes, None);
    disk_erofs: EVER, Out("Read-only"), Lift, |b, n| erofs(b, n, None);
    disk_eacces: EVER, Out("Permission denied"), Lift, |b, n| eacces(b, n, None);
    disk_reads_never_while_serving: LATER, Short, Lift, |b, n| never(b, n, Ops::Reads, None);
    disk_everything_never: EVER, HANGS, Lift, |b, n| never(b, n, Ops::All, None);
    disk_reads_never: START, HANGS, Lift, |b, n| never(b, n, Ops::Reads, None);
    disk_changes_never: EVER, HANGS, Lift, |b, n| never(b, n, Ops::Changes, None);
    disk_syncs_never: EVER, HANGS, Lift, |b, n| never(b, n, Ops::Syncs, None);
    disk_slow: EVER, Whole, Lift, |b, n| b.nodes[n].delay_ns = 100_000_000;
    disk_slower_than_the_timeout: EVER, HANGS, Lift, |b, n| b.nodes[n].delay_ns = 1_100_000_000;
    disk_endlessly_slow: EVER, HANGS, Lift, |b, n| b.nodes[n].delay_ns = 600_000_000_000;
    disk_stale: START, Whole, Lift, |b, n| all_stale(b, n);
    disk_blank: START, Whole, Lift, |b, n| {
            b.replace_node(n);
            b.stop_node(n);
        };

    // The process, and its answers.
    process_killed: AGAIN, Whole, Lift, |b, n| assert!(!b.nodes[n].disk.files().is_empty());
    process_away: LATER, Out("the connection is gone"), Lift, |b, n| b.stop_node(n);
    process_dies_at_a_listing: OPENING, Out("the connection is gone"), Lift,
        |b, n| b.nodes[n].dies_at = Some(|body| matches!(body, RequestBody::ShardList { .. }));
    process_silent: EVER, HANGS, Lift, |b, n| b.nodes[n].silent = true;
    power_lost: AGAIN, Whole, Lift, |b, n| b.nodes[n].disk.power_loss();
    node_of_another_pool: START, Out("which does not know this pool"), Lift, |b, n| {
            b.nodes[n].key = MasterKey([1;
            16]);
            b.nodes[n].pool = PoolId(3);
        };
    node_in_the_place_of_another: START, Out("answers in its place"), Lift,
        |b, n| b.nodes[n].index = NodeIndex((n as u16 + 1) % NODES);
    secret_not_known: EVER, Out("this node does not know"), Lift,
        |b, n| lie(b, n, |q| *q != RequestBody::Identify, |_| Err(NodeError::Capability(UnknownGeneration)));
    secret_retired: EVER, Out("is retired"), Lift,
        |b, n| lie(b, n, |q| *q != RequestBody::Identify, |_| Err(NodeError::Capability(Retired)));
    answers_busy: &[Restarted, Serving], Out("the node is busy"), Lift,
        |b, n| lie(b, n, |_| true, |_| Err(NodeError::Busy));
    answers_busy_to_an_opening: OPENING, Out("the node is busy"), Lift,
        |b, n| lie(b, n, |_| true, |_| Err(NodeError::Busy));
    answers_invalid: EVER, Out("no such thing"), Lift,
        |b, n| lie(b, n, |_| true, |_| Err(NodeError::Invalid("no such thing".into())));
    answers_done_to_all: AGAIN, Out("not a volume state"), Lift,
        |b, n| lie(b, n, |_| true, |_| Ok(ReplyBody::Done));
    answers_done_to_an_opening: OPENING, Out("not a volume state"), Lift,
        |b, n| lie(b, n, |_| true, |_| Ok(ReplyBody::Done));
    answers_done_while_serving: LATER, Out("not the part of a shard"), Lift,
        |b, n| lie(b, n, |_| true, |_| Ok(ReplyBody::Done));
    answers_not_found: EVER, Out("not found"), Lift,
        |b, n| lie(b, n, |_| true, |_| Err(NodeError::NotFound));
    nonsense_to_list_volumes: OPENING, Whole, Lift,
        |b, n| lie(b, n, |q| *q == RequestBody::ListVolumes, |_| Ok(ReplyBody::Done));
    nonsense_to_fence: AGAIN, Out("not a volume state"), Lift,
        |b, n| lie(b, n, |q| matches!(q, RequestBody::Fence { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_fence_of_an_opening: OPENING, Out("not a volume state"), Lift,
        |b, n| lie(b, n, |q| matches!(q, RequestBody::Fence { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_list_shards: START, Out("list"), Lift,
        |b, n| lie(b, n, |q| matches!(q, RequestBody::ShardList { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_read_journal: &[Killed], Back("not the part of the journal"), Lift,
        |b, n| lie(b, n, |q| matches!(q, RequestBody::JournalRead { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_read_shard: EVER, Back("not the part of a shard"), Lift,
        |b, n| lie(b, n, |q| matches!(q, RequestBody::ShardRead { .. }), |_| Ok(ReplyBody::Done));
    short_reads_of_shards: EVER, Back("not the part of a shard"), Lift,
        |b, n| lie(
            b,
            n,
            |q| matches!(q, RequestBody::ShardRead { .. }),
            |_| Ok(ReplyBody::Data(Bytes::from_static(&[1; 512]))),
        );
}
