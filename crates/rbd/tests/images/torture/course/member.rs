//! What an image of a course must hold.

use fieldstone_rbd::format::Features;
use fieldstone_rbd::pool::CreateOptions;

/// The state of an image at a snapshot.
#[derive(Clone, Debug)]
pub struct Past {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Bytes at the start that the parent may have, if there is a parent.
    pub overlap: Option<u64>,
    pub is_protected: bool,
}

/// An image. The parent of each but the first is the one before it.
#[derive(Clone, Debug)]
pub struct Member {
    pub name: String,
    pub bytes: Vec<u8>,
    pub snapshots: Vec<Past>,
    /// Bytes at the start that the parent may have, if there is a parent.
    pub overlap: Option<u64>,
    pub options: CreateOptions,
    pub was_killed: bool,
    next_snapshot: u32,
}

impl Member {
    pub fn new(name: String, bytes: Vec<u8>, overlap: Option<u64>, options: CreateOptions) -> Self {
        let snapshots = Vec::new();
        Self { name, bytes, snapshots, overlap, options, was_killed: false, next_snapshot: 0 }
    }

    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub fn has(&self, features: Features) -> bool {
        self.options.features.completed().has(features)
    }

    pub fn object_bytes(&self) -> u64 {
        1 << self.options.order
    }

    pub fn resize(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
        self.overlap = self.overlap.map(|overlap| overlap.min(size));
    }

    pub fn new_snapshot_name(&mut self) -> String {
        self.next_snapshot += 1;
        format!("s{}", self.next_snapshot)
    }

    pub fn snapshot(&mut self, name: String) {
        let (bytes, overlap) = (self.bytes.clone(), self.overlap);
        self.snapshots.push(Past { name, bytes, overlap, is_protected: false });
    }

    /// With `deep-flatten`, the snapshots need the parent no more either.
    pub fn flatten(&mut self) {
        self.overlap = None;
        if self.has(Features::DEEP_FLATTEN) {
            self.snapshots.iter_mut().for_each(|past| past.overlap = None);
        }
    }

    /// True if the image or a snapshot of it needs the parent.
    pub fn needs_parent(&self) -> bool {
        self.overlap.is_some() || self.snapshots.iter().any(|past| past.overlap.is_some())
    }

    pub fn range(&self, offset: u64, len: u64) -> &[u8] {
        &self.bytes[offset as usize..(offset + len) as usize]
    }

    pub fn range_mut(&mut self, offset: u64, len: u64) -> &mut [u8] {
        &mut self.bytes[offset as usize..(offset + len) as usize]
    }
}
