//! The rows: every fault, where it lies, when it comes, how it ends.

use bytes::Bytes;
use fieldstone_node::FileId;
use fieldstone_proto::{MasterKey, NodeError, NodeIndex, PoolId, ReplyBody, RequestBody};
use fieldstone_sim::disk::FileKind;

use crate::bench::{NODES, Ops};
use crate::judge::Ends::{Back, Out, Short, Whole};
use crate::judge::Moment::{Closed, Killed, Restarted, Serving};
use crate::judge::Remedy::{Lift, Replace, Restart};
use crate::judge::{Row, judge};
use crate::plant::*;

/// Makes a test of each row, and a list of their names.
macro_rules! rows {
    ($($(#[$note:meta])* $name:ident: [$($moment:ident),*] $ends:expr, $remedy:ident,
        |$bench:ident, $node:ident| $plant:expr;)*) => {
        $(
            #[test]
            $(#[$note])*
            fn $name() {
                judge(stringify!($name), &Row {
                    moments: &[$($moment),*],
                    plant: |$bench, $node| $plant,
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
    record_magic_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 0);
    record_checksum_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 8);
    record_version_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 12);
    record_volume_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 16);
    record_sequence_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 32);
    record_epoch_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 40);
    record_root_version_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 48);
    record_root_length_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 56);
    record_root_checksum_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 60);
    record_reservation_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 64);
    record_padding_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::Record, 68);
    record_older_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| flip(b, n, Part::OlderRecord, 40);
    record_both_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| { flip(b, n, Part::Record, 40); flip(b, n, Part::OlderRecord, 32) };
    record_root_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Record, 4096 + 20);
    record_roots_both_flipped: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| { flip(b, n, Part::Record, 4096 + 20); flip(b, n, Part::OlderRecord, 4096 + 20) };
    record_future_version: [Closed, Killed, Restarted] Out("version 9"), Replace, |b, n| future(b, n, Part::Record);
    record_of_another_volume: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| forge(b, n, Part::Record, |r| r[16] ^= 1);
    record_root_too_long: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| forge(b, n, Part::Record, |r| r[59] = 1);
    record_in_wrong_half: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| forge(b, n, Part::Record, |r| r[32] ^= 1);
    record_root_unreadable: [Closed, Killed, Restarted] Back("its root of the volume | the connection is gone"), Lift, |b, n| forge_root(b, n, |root| root[0] ^= 1);
    record_root_future_version: [Closed, Killed, Restarted] Back("version 9 | the connection is gone"), Replace, |b, n| forge_root(b, n, |root| root[8] = 9);
    record_missing: [Closed, Killed, Restarted] Whole, Lift, |b, n| lose(b, n, FileKind::Volume);
    record_empty: [Closed, Killed, Restarted] Whole, Lift, |b, n| cut(b, n, FileKind::Volume, 0);
    record_cut_in_half: [Closed, Killed, Restarted] Whole, Lift, |b, n| cut(b, n, FileKind::Volume, 2);
    record_stale: [Closed, Killed, Restarted] Whole, Lift, |b, n| stale(b, n, FileKind::Volume);
    record_reads_eio: [Closed, Killed, Restarted] Back("cannot be used | the connection is gone"), Lift, |b, n| eio(b, n, Ops::Reads, Some(FileKind::Volume));
    record_changes_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Changes, Some(FileKind::Volume));
    record_syncs_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Syncs, Some(FileKind::Volume));
    record_enospc: [Closed, Killed, Restarted, Serving] Out("no space"), Lift, |b, n| enospc(b, n, Ops::Changes, Some(FileKind::Volume));
    record_erofs: [Closed, Killed, Restarted, Serving] Out("Read-only"), Lift, |b, n| erofs(b, n, Some(FileKind::Volume));
    record_eacces: [Closed, Killed, Restarted, Serving] Out("Permission denied"), Lift, |b, n| eacces(b, n, Some(FileKind::Volume));
    record_never: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::All, Some(FileKind::Volume));
    // Journals.
    journal_magic_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 0);
    journal_checksum_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 8);
    journal_version_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 12);
    journal_volume_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 16);
    journal_generation_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 32);
    journal_size_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 40);
    journal_padding_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Ring, 48);
    journal_future_version: [Closed, Killed, Restarted] Whole, Lift, |b, n| future(b, n, Part::Ring);
    journal_of_another_generation: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Ring, |r| r[33] ^= 1);
    journal_size_wrong: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Ring, |r| r[41] ^= 0x10);
    journal_missing: [Closed, Killed, Restarted] Whole, Lift, |b, n| lose(b, n, FileKind::Journal);
    journal_empty: [Closed, Killed, Restarted] Whole, Lift, |b, n| cut(b, n, FileKind::Journal, 0);
    journal_cut_in_half: [Closed, Killed, Restarted] Whole, Lift, |b, n| cut(b, n, FileKind::Journal, 2);
    journal_stale: [Closed, Killed, Restarted] Whole, Lift, |b, n| stale(b, n, FileKind::Journal);
    journal_record_header_flipped: [Killed, Restarted, Serving] Whole, Lift, |b, n| flip_record(b, n, 20);
    journal_record_block_flipped: [Killed, Restarted, Serving] Whole, Lift, |b, n| flip_record(b, n, 4096 + 20);
    journal_ring_blank: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| blank_ring(b, n);
    journal_changes_eio: [Closed, Killed, Restarted, Serving] Out("removing a journal: Input/output error"), Lift, |b, n| eio(b, n, Ops::Changes, Some(FileKind::Journal));
    journal_reads_eio: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| eio(b, n, Ops::Reads, Some(FileKind::Journal));
    journal_syncs_eio: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| eio(b, n, Ops::Syncs, Some(FileKind::Journal));
    journal_creations_eio: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| eio(b, n, Ops::Creations, Some(FileKind::Journal));
    journal_removals_eio_while_used: [Closed, Killed, Serving] Whole, Lift, |b, n| eio(b, n, Ops::Removals, Some(FileKind::Journal));
    journal_removals_eio: [Restarted] Out("removing a journal: Input/output error"), Lift, |b, n| eio(b, n, Ops::Removals, Some(FileKind::Journal));
    journal_enospc: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| enospc(b, n, Ops::Changes, Some(FileKind::Journal));
    journal_erofs: [Closed, Killed, Restarted, Serving] Out("removing a journal: Read-only"), Lift, |b, n| erofs(b, n, Some(FileKind::Journal));
    journal_eacces_while_serving: [Serving] Out("removing a journal: Permission denied"), Lift, |b, n| eacces(b, n, Some(FileKind::Journal));
    journal_eacces: [Closed, Killed, Restarted] Whole, Lift, |b, n| eacces(b, n, Some(FileKind::Journal));
    journal_never_while_serving: [Serving] Back("did not answer in time"), Lift, |b, n| never(b, n, Ops::All, Some(FileKind::Journal));
    journal_never: [Closed, Killed, Restarted] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::All, Some(FileKind::Journal));
    // Slot headers.
    header_magic_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 0);
    header_checksum_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 8);
    header_version_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 12);
    header_volume_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 16);
    header_segment_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 32);
    header_epoch_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 40);
    header_sequence_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 48);
    header_incarnation_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 56);
    header_first_position_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 64);
    header_end_position_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 72);
    header_slot_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 80);
    header_length_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 84);
    header_shard_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 88);
    header_kind_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 89);
    header_zero_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 90);
    header_stable_below_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 96);
    header_padding_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 104);
    header_checksums_flipped: [Closed, Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Header, 1024);
    header_future_version: [Closed, Killed, Restarted] Out("version 9"), Replace, |b, n| future(b, n, Part::Header);
    header_of_another_volume: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[16] ^= 1);
    header_of_another_slot: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[80] ^= 1);
    header_of_another_node: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[56] ^= 1);
    header_of_another_shard: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[88] ^= 1);
    header_too_long: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[87] = 1);
    header_unknown_kind: [Closed, Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Header, |r| r[89] = 7);
    // Open notes.
    note_magic_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 0);
    note_checksum_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 8);
    note_version_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 12);
    note_volume_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 16);
    note_segment_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 32);
    note_epoch_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 40);
    note_sequence_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 48);
    note_incarnation_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 56);
    note_slot_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 64);
    note_shard_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 68);
    note_zero_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 69);
    note_stable_below_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 72);
    note_padding_flipped: [Killed, Restarted] Whole, Lift, |b, n| flip(b, n, Part::Note, 80);
    note_future_version: [Killed, Restarted] Out("version 9"), Replace, |b, n| future(b, n, Part::Note);
    note_of_another_slot: [Killed, Restarted] Whole, Lift, |b, n| forge(b, n, Part::Note, |r| r[64] ^= 1);
    // The file `slots`.
    slots_missing: [Closed, Killed, Restarted] Whole, Lift, |b, n| lose(b, n, FileKind::Slots);
    slots_empty: [Closed, Killed, Restarted] Whole, Lift, |b, n| cut(b, n, FileKind::Slots, 0);
    slots_cut_in_half: [Closed, Killed, Restarted] Whole, Lift, |b, n| cut(b, n, FileKind::Slots, 8);
    slots_stale: [Closed, Killed, Restarted] Whole, Lift, |b, n| stale(b, n, FileKind::Slots);
    slots_of_another_node: [Closed, Killed, Restarted] Whole, Lift, |b, n| foreign(b, n, FileKind::Slots);
    slots_reads_eio: [Closed, Killed, Restarted] Short, Restart, |b, n| eio(b, n, Ops::Reads, Some(FileKind::Slots));
    slots_reads_eio_while_serving: [Serving] Short, Lift, |b, n| eio(b, n, Ops::Reads, Some(FileKind::Slots));
    slots_changes_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Changes, Some(FileKind::Slots));
    slots_syncs_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Syncs, Some(FileKind::Slots));
    slots_enospc: [Closed, Killed, Restarted, Serving] Short, Lift, |b, n| enospc(b, n, Ops::Changes, Some(FileKind::Slots));
    slots_erofs: [Closed, Killed, Restarted, Serving] Out("Read-only"), Lift, |b, n| erofs(b, n, Some(FileKind::Slots));
    slots_eacces: [Closed, Killed, Restarted, Serving] Out("Permission denied"), Lift, |b, n| eacces(b, n, Some(FileKind::Slots));
    slots_never: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::All, Some(FileKind::Slots));
    // The file `data`.
    data_block_flipped: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| b.change(n, FileKind::Data, |bytes| flip_used(bytes));
    data_missing: [Closed, Killed, Restarted] Out("the data file is missing"), Replace, |b, n| lose(b, n, FileKind::Data);
    data_empty: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| cut(b, n, FileKind::Data, 0);
    data_cut_short: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| cut(b, n, FileKind::Data, 8);
    data_stale: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| stale(b, n, FileKind::Data);
    data_of_another_node: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| foreign(b, n, FileKind::Data);
    data_reads_eio: [Closed, Killed, Restarted, Serving] Short, Lift, |b, n| eio(b, n, Ops::Reads, Some(FileKind::Data));
    data_changes_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Changes, Some(FileKind::Data));
    data_syncs_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Syncs, Some(FileKind::Data));
    data_enospc: [Closed, Killed, Restarted, Serving] Out("its disk is full"), Lift, |b, n| enospc(b, n, Ops::Changes, Some(FileKind::Data));
    data_erofs: [Closed, Killed, Restarted, Serving] Out("Read-only"), Lift, |b, n| erofs(b, n, Some(FileKind::Data));
    data_eacces: [Closed, Killed, Restarted, Serving] Out("Permission denied"), Lift, |b, n| eacces(b, n, Some(FileKind::Data));
    data_never: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::All, Some(FileKind::Data));
    // The file `doubt`.
    doubt_without_a_cause: [Closed, Killed, Restarted] Whole, Lift, |b, n| b.nodes[n].disk.put(FileId::Doubt, &[]);
    doubt_creation_eio: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| eio(b, n, Ops::Creations, Some(FileKind::Doubt));
    doubt_removal_eio: [Closed, Killed, Restarted] Whole, Lift, |b, n| eio(b, n, Ops::Removals, Some(FileKind::Doubt));
    doubt_cannot_be_made_after_a_failed_sync: [Serving] Out("Input/output error"), Lift, |b, n| { eio(b, n, Ops::Creations, Some(FileKind::Doubt)); eio(b, n, Ops::Syncs, None) };
    // The whole disk.
    disk_reads_eio_while_serving: [Serving] Short, Lift, |b, n| eio(b, n, Ops::Reads, None);
    disk_everything_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::All, None);
    disk_reads_eio: [Closed, Killed, Restarted] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Reads, None);
    disk_changes_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Changes, None);
    disk_syncs_eio: [Closed, Killed, Restarted, Serving] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::Syncs, None);
    disk_list_eio: [Closed, Killed, Restarted] Out("Input/output error"), Lift, |b, n| eio(b, n, Ops::List, None);
    disk_enospc: [Closed, Killed, Restarted, Serving] Out("no space"), Lift, |b, n| enospc(b, n, Ops::Changes, None);
    disk_erofs: [Closed, Killed, Restarted, Serving] Out("Read-only"), Lift, |b, n| erofs(b, n, None);
    disk_eacces: [Closed, Killed, Restarted, Serving] Out("Permission denied"), Lift, |b, n| eacces(b, n, None);
    disk_reads_never_while_serving: [Serving] Short, Lift, |b, n| never(b, n, Ops::Reads, None);
    disk_everything_never: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::All, None);
    disk_reads_never: [Closed, Killed, Restarted] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::Reads, None);
    disk_changes_never: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::Changes, None);
    disk_syncs_never: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| never(b, n, Ops::Syncs, None);
    disk_slow: [Closed, Killed, Restarted, Serving] Whole, Lift, |b, n| b.nodes[n].delay_ns = 100_000_000;
    disk_slower_than_the_timeout: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| b.nodes[n].delay_ns = 1_100_000_000;
    disk_endlessly_slow: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| b.nodes[n].delay_ns = 600_000_000_000;
    disk_stale: [Closed, Killed, Restarted] Whole, Lift, |b, n| all_stale(b, n);
    disk_blank: [Closed, Killed, Restarted] Whole, Lift, |b, n| { b.replace_node(n); b.stop_node(n) };
    // The process, and what it says.
    process_killed: [Restarted] Whole, Lift, |b, n| assert!(!b.nodes[n].disk.files().is_empty());
    process_away: [Serving] Out("the connection is gone"), Lift, |b, n| b.stop_node(n);
    process_silent: [Closed, Killed, Restarted, Serving] Out("did not answer in time | not connected yet | the connection is gone"), Lift, |b, n| b.nodes[n].silent = true;
    power_lost: [Restarted] Whole, Lift, |b, n| b.nodes[n].disk.power_loss();
    node_of_another_pool: [Closed, Killed, Restarted] Out("which does not know this pool"), Lift, |b, n| { b.nodes[n].key = MasterKey([1; 16]); b.nodes[n].pool = PoolId(3) };
    node_in_the_place_of_another: [Closed, Killed, Restarted] Out("answers in its place"), Lift, |b, n| b.nodes[n].index = NodeIndex((n as u16 + 1) % NODES);
    answers_busy: [Restarted, Serving] Out("the node is busy"), Lift, |b, n| lie(b, n, |_| true, |_| Err(NodeError::Busy));
    #[ignore = "an opening asks a node that is busy for ever"]
    answers_busy_to_an_opening: [Closed, Killed] Out("the node is busy"), Lift, |b, n| lie(b, n, |_| true, |_| Err(NodeError::Busy));
    answers_invalid: [Closed, Killed, Restarted, Serving] Out("no such thing"), Lift, |b, n| lie(b, n, |_| true, |_| Err(NodeError::Invalid("no such thing".into())));
    answers_done_to_all: [Restarted] Out("not a volume state"), Lift, |b, n| lie(b, n, |_| true, |_| Ok(ReplyBody::Done));
    #[ignore = "an opening asks a node for ever that answers a fence with nonsense"]
    answers_done_to_an_opening: [Closed, Killed] Out("not a volume state"), Lift, |b, n| lie(b, n, |_| true, |_| Ok(ReplyBody::Done));
    answers_done_while_serving: [Serving] Out("not the part of a shard"), Lift, |b, n| lie(b, n, |_| true, |_| Ok(ReplyBody::Done));
    answers_not_found: [Closed, Killed, Restarted, Serving] Out("not found"), Lift, |b, n| lie(b, n, |_| true, |_| Err(NodeError::NotFound));
    nonsense_to_list_volumes: [Closed, Killed] Whole, Lift, |b, n| lie(b, n, |q| *q == RequestBody::ListVolumes, |_| Ok(ReplyBody::Done));
    nonsense_to_fence: [Restarted] Out("not a volume state"), Lift, |b, n| lie(b, n, |q| matches!(q, RequestBody::Fence { .. }), |_| Ok(ReplyBody::Done));
    #[ignore = "an opening asks a node for ever that answers a fence with nonsense"]
    nonsense_to_fence_of_an_opening: [Closed, Killed] Out("not a volume state"), Lift, |b, n| lie(b, n, |q| matches!(q, RequestBody::Fence { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_list_shards: [Closed, Killed, Restarted] Out("list"), Lift, |b, n| lie(b, n, |q| matches!(q, RequestBody::ShardList { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_read_journal: [Killed] Back("not the part of the journal"), Lift, |b, n| lie(b, n, |q| matches!(q, RequestBody::JournalRead { .. }), |_| Ok(ReplyBody::Done));
    nonsense_to_read_shard: [Closed, Killed, Restarted, Serving] Back("not the part of a shard"), Lift, |b, n| lie(b, n, |q| matches!(q, RequestBody::ShardRead { .. }), |_| Ok(ReplyBody::Done));
    short_reads_of_shards: [Closed, Killed, Restarted, Serving] Back("not the part of a shard"), Lift, |b, n| lie(b, n, |q| matches!(q, RequestBody::ShardRead { .. }), |_| Ok(ReplyBody::Data(Bytes::from_static(&[1; 512]))));
}
