//! Makes a pool.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_host::folder;
use fieldstone_proto::route::REPLICAS_MAX;
use fieldstone_proto::{Encode, MasterKey, PoolId, Strategy};
use fieldstone_volume::can_stream;

use super::layout::SLOT_BYTES;
use super::record::{self, FolderKind};
use super::{Layout, Pool, check_capacity, default_node_bytes, geometry, is_pool, random};

/// Checks that volumes of `profile` fit on `nodes` nodes.
pub fn check_fits(profile: Profile, nodes: u16) -> anyhow::Result<()> {
    let needed = profile.shards();
    if needed > usize::from(nodes) {
        bail!("{profile} puts its shards on {needed} different nodes, and the pool has {nodes}");
    }
    Ok(())
}

/// Checks that the slots of nodes have room for the shards of volumes of `profile`.
fn check_geometry(profile: Profile) -> anyhow::Result<()> {
    // The sizes of the volume and of the nodes do not matter for this: slots have one size.
    geometry(u64::from(SLOT_BYTES), profile, Layout { slot_bytes: SLOT_BYTES, slots: 1 })
        .map(drop)
        .context("no volume of the pool could have its code; choose another code")
}

/// The sizes of the nodes of a new pool.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of each node in bytes; a fair share of the free space if absent.
    pub node_bytes: Option<u64>,
    /// The nodes may be larger than the free space.
    pub overcommit: bool,
}

/// Makes a pool: first the nodes, then the secret and the pool's description. So if it is
/// interrupted, no folder looks like a pool.
pub fn create(
    dir: &Path,
    nodes: u16,
    profile: Profile,
    (replicate, encode): (Strategy, Encode),
    sizes: Sizes,
) -> anyhow::Result<Pool> {
    check_fits(profile, nodes)?;
    if is_pool(dir) {
        bail!("{} is a pool already; remove the folder to start over", dir.display());
    }
    check_geometry(profile)?;
    if encode == Encode::Stream && !can_stream(profile) {
        bail!(
            "nodes cannot make the parity of {profile}: the code needs 1 to {} parity shards, and \
             no more elements than a message can describe; use --encode client, or a code such as \
             rs:4+2",
            REPLICAS_MAX - 1
        );
    }
    let is_new = !dir.exists();
    fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
    let planned = || {
        let node_bytes = match sizes.node_bytes {
            Some(bytes) => bytes,
            None => default_node_bytes(dir, nodes)?,
        };
        let pool = Pool {
            folder: dir.to_path_buf(),
            id: PoolId(random()?),
            nodes,
            profile,
            layout: Layout::for_node_bytes(node_bytes)?,
            replicate,
            encode,
            keys: MasterKey(random()?.to_le_bytes()).into(),
        };
        let folders = pool.node_indices().map(|node| pool.node_folder(node));
        check_capacity(dir, folders, pool.layout, sizes.overcommit)?;
        anyhow::Ok(pool)
    };
    let pool = planned().inspect_err(|_| {
        // The room can only be known when there is a folder.
        if is_new {
            let _ = fs::remove_dir(dir);
        }
    })?;
    let mut made = Vec::new();
    for node in pool.node_indices() {
        let (path, superblock) = (pool.node_folder(node), pool.superblock(node));
        folder::create(&path, &superblock)?;
        made.push((node, superblock.incarnation, FolderKind::of(dir, &path)?));
    }
    pool.write()?;
    record::update(dir, pool.id, |record| {
        for (node, incarnation, place) in made {
            record.note_made(node, incarnation, place, false);
        }
    })?;
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_no_volume_can_have_is_refused_and_nothing_is_written() {
        let temp = tempfile::tempdir().expect("temp");
        let dir = temp.path().join("pool");
        let sizes = Sizes { node_bytes: Some(16 << 20), overcommit: true };
        for code in ["clay:16+4", "clay:20+4", "zigzag:11+2,n=1024"] {
            let profile: Profile = code.parse().expect("the name of a code");
            let ways = (Strategy::Flat, Encode::Client);
            let error = create(&dir, 24, profile, ways, sizes).expect_err("too many elements");
            let error = format!("{error:#}");
            assert!(error.contains(code) && error.contains("slots of nodes have 1 MiB"), "{error}");
            assert!(error.contains("choose another code"), "{error}");
            assert!(!dir.exists(), "{code}: the folder was made");
        }
        let profile = "clay:8+4".parse().expect("a name");
        let ways = (Strategy::Ring, Encode::Stream);
        let many = "rs:4+16".parse().expect("a name");
        let error = create(&dir, 20, many, ways, sizes).expect_err("no route is so long");
        assert!(format!("{error:#}").contains("rs:4+16"), "{error:#}");
        assert!(!dir.exists());
        let pool = create(&dir, 12, profile, ways, sizes).expect("it fits");
        assert_eq!((pool.nodes, pool.replicate, pool.encode), (12, ways.0, ways.1));
    }
}
