//! What the volume has committed to its nodes: the root, and the numbers of roots and journals,
//! which only rise.
//!
//! # Invariants
//! - The root is the last one that enough nodes have taken (`nodes_needed`), or the one that an
//!   inspection has found. Everything that it names must stay on the nodes until they have taken
//!   the next one. An opening has none until nodes have taken its own.
//! - Each root that the volume puts on nodes has a higher version than the roots that its nodes
//!   reported and those that this attempt to open the volume has put there. Nodes compare the epoch
//!   first.
//! - The volume begins no generation of the journal twice, and none that its nodes reported. An
//!   absent node may have this generation from an earlier writer: records also name the epoch.
//! - A volume that serves holds the lock while it replaces the root, and while it writes a new
//!   generation of the journal. An opening needs no lock: no other task does either then.

use fieldstone_proto::JournalGen;

use crate::root::Root;
use fieldstone_tasks::Lock;

/// The root, and the numbers of roots and journals so far.
#[derive(Default)]
pub struct Committed {
    root: Option<Root>,
    version: u64,
    generation: u64,
    lock: Lock,
}

impl Committed {
    /// The last root that enough nodes have taken.
    #[must_use]
    pub fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// The same, for a test to change.
    #[cfg(test)]
    pub fn root_mut(&mut self) -> &mut Root {
        self.root.as_mut().expect("it serves")
    }

    /// Enough nodes have taken this root.
    pub fn set_root(&mut self, root: Root) {
        self.root = Some(root);
    }

    /// The version of the next root that the volume puts on nodes.
    pub fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// A node has a root of this version.
    pub fn note_version(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// An attempt to open the volume begins, and this is the highest version that its nodes have.
    pub fn start_after(&mut self, version: u64) {
        self.version = version;
    }

    /// A generation that no journal had yet, higher than `generation`.
    pub fn next_generation(&mut self, generation: JournalGen) -> JournalGen {
        self.note_generation(generation);
        self.generation += 1;
        JournalGen(self.generation)
    }

    /// A journal of this generation was begun.
    pub fn note_generation(&mut self, generation: JournalGen) {
        self.generation = self.generation.max(generation.0);
    }

    /// The lock of those who replace the root or move the journal.
    #[must_use]
    pub fn lock(&self) -> Lock {
        self.lock.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_generations_rise_above_all_that_are_known() {
        let mut committed = Committed::default();
        committed.start_after(4);
        assert_eq!(committed.next_version(), 5);
        committed.note_version(9);
        committed.note_version(3);
        assert_eq!((committed.next_version(), committed.next_version()), (10, 11));
        committed.note_generation(JournalGen(6));
        assert_eq!(committed.next_generation(JournalGen(2)), JournalGen(7));
        assert_eq!(committed.next_generation(JournalGen(8)), JournalGen(9));
        assert_eq!(committed.next_generation(JournalGen(8)), JournalGen(10), "the last one failed");
    }
}
