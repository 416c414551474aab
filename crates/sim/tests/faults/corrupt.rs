//! The faults of a node: damaged files, errors of its disk, and false answers.

use fieldstone_node::DiskError;
use fieldstone_proto::{NodeError, ReplyBody, RequestBody, crc32c};
use fieldstone_sim::disk::NodeFileKind;

use crate::bench::{Bench, InjectedError, Lie, Ops};

const BLOCK: usize = 4096;
/// Length of the part that the checksum covers, in records of one sector.
const SECTOR: usize = 512;
const VOLUME_SLOT: usize = 65536;

/// A place in a node's files.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// The newer of the two volume records.
    Record,
    /// The older one.
    OlderRecord,
    /// The newest journal's header.
    Ring,
    /// A slot header of a complete shard.
    Header,
    /// The open note of a slot that has no header.
    Note,
}

impl Part {
    pub fn file(self) -> NodeFileKind {
        match self {
            Part::Record | Part::OlderRecord => NodeFileKind::Volume,
            Part::Ring => NodeFileKind::Journal,
            Part::Header | Part::Note => NodeFileKind::Slots,
        }
    }

    /// Where the part begins in its file, and the length that its checksum covers.
    fn find(self, bytes: &[u8]) -> (usize, usize) {
        let starts = |at: &usize, magic: &[u8]| bytes[*at..].starts_with(magic);
        let sequence = |at: &usize| word(bytes, at + 32);
        let records = || [0, VOLUME_SLOT].into_iter().filter(|at| starts(at, b"FSTNVOLU"));
        let mut slots = (0..bytes.len()).step_by(2 * BLOCK);
        let (at, len) = match self {
            Part::Record => (records().max_by_key(sequence), SECTOR),
            Part::OlderRecord => (records().min_by_key(sequence), SECTOR),
            Part::Ring => (Some(0).filter(|at| starts(at, b"FSTNJRNL")), SECTOR),
            Part::Header => (slots.find(|at| starts(at, b"FSTNSLOT")), BLOCK),
            Part::Note => {
                let open =
                    |at: &usize| !starts(at, b"FSTNSLOT") && starts(&(at + BLOCK), b"FSTNOPEN");
                (slots.find(open).map(|at| at + BLOCK), SECTOR)
            }
        };
        (at.unwrap_or_else(|| panic!("the node has no {self:?}")), len)
    }
}

pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Flips a bit at `offset` of the part.
pub fn flip(bench: &mut Bench, node: usize, part: Part, offset: usize) {
    bench.change(node, part.file(), |bytes| {
        let (at, _) = part.find(bytes);
        bytes[at + offset] ^= 4;
    });
}

/// Changes the part and gives it a matching checksum, as a faulty or newer program would.
pub fn forge(bench: &mut Bench, node: usize, part: Part, change: fn(&mut [u8])) {
    bench.change(node, part.file(), |bytes| {
        let (at, len) = part.find(bytes);
        change(&mut bytes[at..]);
        let sum = crc32c(&bytes[at + 12..at + len]);
        bytes[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
    });
}

/// Makes a record look like one of a later release.
pub fn future(bench: &mut Bench, node: usize, part: Part) {
    forge(bench, node, part, |record| record[12] = 9);
}

/// Removes the newest file of the kind.
pub fn lose(bench: &mut Bench, node: usize, kind: NodeFileKind) {
    let file = bench.file(node, kind);
    assert!(bench.nodes[node].disk.lose(file));
}

/// Cuts the newest file of the kind to a `part`-th of its length; 0 for nothing.
pub fn cut(bench: &mut Bench, node: usize, kind: NodeFileKind, part: usize) {
    bench.change(node, kind, |bytes| {
        let len = bytes.len().checked_div(part).unwrap_or(0);
        bytes.truncate(len / BLOCK * BLOCK);
    });
}

/// Puts files of the kind back to their old content. Removes those that did not exist then.
pub fn stale(bench: &mut Bench, node: usize, kind: NodeFileKind) {
    let mut changed = false;
    for file in bench.files(node, kind) {
        let host = &mut bench.nodes[node];
        match host.old.get(&file) {
            Some(bytes) => {
                changed |= host.disk.bytes(file).as_ref() != Some(bytes);
                host.disk.put(file, bytes);
            }
            None => changed |= host.disk.lose(file),
        }
    }
    assert!(changed, "the old files are the present ones");
}

/// Puts all files back to their old content.
pub fn all_stale(bench: &mut Bench, node: usize) {
    let host = &mut bench.nodes[node];
    for file in host.disk.files() {
        host.disk.lose(file);
    }
    let old = host.old.clone();
    for (file, bytes) in &old {
        host.disk.put(*file, bytes);
    }
}

/// Replaces the files of the kind with those of another node.
pub fn foreign(bench: &mut Bench, node: usize, kind: NodeFileKind) {
    let other = bench.bytes((node + 1) % bench.nodes.len(), kind);
    bench.change(node, kind, |bytes| *bytes = other);
}

fn inject(
    bench: &mut Bench,
    node: usize,
    ops: Ops,
    file: Option<NodeFileKind>,
    error: Option<DiskError>,
) {
    bench.nodes[node].injected_errors.push(InjectedError { ops, file, error });
}

fn system(text: &str) -> Option<DiskError> {
    Some(DiskError::Io(text.to_owned()))
}

/// Makes these operations fail as on a bad disk.
pub fn eio(bench: &mut Bench, node: usize, ops: Ops, file: Option<NodeFileKind>) {
    inject(bench, node, ops, file, system("Input/output error (os error 5)"));
}

/// Makes all operations that change files fail as on a read-only file system.
pub fn erofs(bench: &mut Bench, node: usize, file: Option<NodeFileKind>) {
    inject(bench, node, Ops::Changes, file, system("Read-only file system (os error 30)"));
}

/// Makes all operations fail as on files of another user.
pub fn eacces(bench: &mut Bench, node: usize, file: Option<NodeFileKind>) {
    inject(bench, node, Ops::All, file, system("Permission denied (os error 13)"));
}

/// Makes operations fail as on a full file system.
pub fn enospc(bench: &mut Bench, node: usize, ops: Ops, file: Option<NodeFileKind>) {
    inject(bench, node, ops, file, Some(DiskError::NoSpace));
}

/// Makes these operations never end.
pub fn never(bench: &mut Bench, node: usize, ops: Ops, file: Option<NodeFileKind>) {
    inject(bench, node, ops, file, None);
}

/// Changes the root in the newer record, and makes its checksums match.
pub fn forge_root(bench: &mut Bench, node: usize, change: fn(&mut [u8])) {
    bench.change(node, NodeFileKind::Volume, |bytes| {
        let (at, len) = Part::Record.find(bytes);
        let root_len = word(bytes, at + 56) as u32 as usize;
        let root = &mut bytes[at + BLOCK..at + BLOCK + root_len];
        change(root);
        let sum = crc32c(root);
        bytes[at + 60..at + 64].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32c(&bytes[at + 12..at + len]);
        bytes[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
    });
}

/// Flips a bit at `offset` of the last record in the ring that has blocks behind its header.
pub fn flip_record(bench: &mut Bench, node: usize, offset: usize) {
    bench.change(node, NodeFileKind::Journal, |bytes| {
        let starts = (BLOCK..bytes.len()).step_by(BLOCK);
        let begins = |at: &usize| bytes[*at..].starts_with(b"FSJOURN");
        let carries = |at: &usize| {
            begins(at) && bytes.get(at + BLOCK..at + BLOCK + 7).is_some_and(|b| b != b"FSJOURN")
        };
        let newest = starts.filter(carries).max_by_key(|at| word(bytes, at + 48));
        bytes[newest.expect("the ring has a record") + offset] ^= 4;
    });
}

/// Zeroes the ring behind its valid header.
pub fn blank_ring(bench: &mut Bench, node: usize) {
    bench.change(node, NodeFileKind::Journal, |bytes| bytes[BLOCK..].fill(0));
}

/// Flips a bit in every block that is not all zeroes.
pub fn flip_used(bytes: &mut [u8]) {
    for block in bytes.chunks_mut(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0)) {
        block[100] ^= 4;
    }
}

/// Makes the node answer `result` to requests that match `to`.
pub fn lie(
    bench: &mut Bench,
    node: usize,
    to: fn(&RequestBody) -> bool,
    result: fn(&RequestBody) -> Result<ReplyBody, NodeError>,
) {
    bench.nodes[node].lie = Some(Lie { to, result });
}
