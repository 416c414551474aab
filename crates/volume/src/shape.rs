//! The shape of a volume: its name, its code, and the sizes of its parts.
//!
//! The request that creates a volume says its shape; later its root does. Until an opening of an
//! existing volume has read the root, the shape is a placeholder.
//!
//! # Invariants
//! - The code is the profile's. The layout follows from the code, and from the geometry without the
//!   size of the device.
//! - While a volume serves, only the size of its device changes, and only upwards: users may
//!   already have written up to its end.

use fieldstone_codes::{Code, Profile};
use fieldstone_proto::BLOCK_BYTES;
use fieldstone_proto::route::REPLICAS_MAX;
use std::sync::{Arc, OnceLock};

use crate::column::Columns;
use crate::interface::Geometry;
use crate::layout::{Layout, step_blocks};

/// The shape of a volume.
pub struct Shape {
    name: String,
    profile: Profile,
    code: Arc<dyn Code>,
    geometry: Geometry,
    layout: Layout,
    /// Made when they are first used.
    columns: OnceLock<Option<Columns>>,
}

impl Shape {
    /// The shape of a volume with this profile and geometry.
    #[must_use]
    pub fn new(name: String, profile: Profile, geometry: Geometry) -> Self {
        let code = profile.code();
        let layout = layout_of(&*code, &geometry);
        Self { name, profile, code, geometry, layout, columns: OnceLock::new() }
    }

    /// The volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the volume protects its data.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The code of its segments.
    #[must_use]
    pub fn code(&self) -> &dyn Code {
        &*self.code
    }

    /// The columns of the code, if nodes can make its parity.
    #[must_use]
    pub fn columns(&self) -> Option<&Columns> {
        let columns = || columns_for_nodes(&*self.code);
        self.columns.get_or_init(columns).as_ref()
    }

    /// Its sizes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How a segment's blocks lie on its shards.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Size of the device in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.geometry.size_bytes
    }

    /// Size of the device in blocks.
    #[must_use]
    pub fn size_blocks(&self) -> u64 {
        self.geometry.size_bytes / BLOCK_BYTES as u64
    }

    /// Makes the device as large as `size_bytes`, if it is smaller.
    pub fn grow(&mut self, size_bytes: u64) {
        self.geometry.size_bytes = self.geometry.size_bytes.max(size_bytes);
    }
}

/// The columns of a code, if a route has room for its parity nodes, and a message for the columns.
#[must_use]
pub fn columns_for_nodes(code: &dyn Code) -> Option<Columns> {
    let fits = (1..REPLICAS_MAX).contains(&code.m());
    fits.then(|| Columns::of(code)).flatten()
}

/// The layout that a code and geometry make.
#[must_use]
pub fn layout_of(code: &dyn Code, geometry: &Geometry) -> Layout {
    let blocks = |bytes: u32| bytes / BLOCK_BYTES as u32;
    let (unit_blocks, shard_blocks) = (blocks(geometry.unit_bytes), blocks(geometry.shard_bytes));
    let step = step_blocks(unit_blocks, code.elements()).max(1);
    let (chunk_blocks, step_blocks) = match blocks(geometry.chunk_bytes) {
        // Blocks at the same position in all shards are coded by themselves.
        _ if code.elements() == 1 => (unit_blocks, step),
        0 => (shard_blocks, step),
        chunk => (chunk, chunk),
    };
    Layout {
        k: u32::try_from(code.k()).expect("codes are small"),
        m: u32::try_from(code.m()).expect("codes are small"),
        unit_blocks,
        chunk_blocks,
        step_blocks,
        shard_blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        size_bytes: 8 << 20,
        shard_bytes: 65536,
        unit_bytes: 4096,
        chunk_bytes: 0,
        ring_bytes: 1 << 20,
    };

    #[test]
    fn code_and_layout_follow_the_profile() {
        for (profile, k, m) in [("rs:4+2", 4, 2), ("copies:3", 1, 2), ("zigzag:4+2", 4, 2)] {
            let profile: Profile = profile.parse().expect("the name of a code");
            let shape = Shape::new("v".into(), profile, GEOMETRY);
            assert_eq!((shape.code().k(), shape.code().m()), (k, m));
            assert_eq!((shape.layout().k as usize, shape.layout().m as usize), (k, m));
        }
    }

    #[test]
    fn the_device_only_grows_and_the_layout_stays() {
        let mut shape = Shape::new("v".into(), Profile::rs(4, 2).expect("in bounds"), GEOMETRY);
        let layout = *shape.layout();
        shape.grow(16 << 20);
        assert_eq!((shape.size_bytes(), shape.size_blocks()), (16 << 20, 4096));
        shape.grow(8 << 20);
        assert_eq!(shape.size_bytes(), 16 << 20);
        assert_eq!(*shape.layout(), layout);
    }
}
