//! Tests of the rows in `docs/faults.md` about a node's superblock, folder and lock.
//!
//! Each row damages one thing. Then the folder cannot be opened, and the error names the thing and
//! the damage. The opening changes nothing in the folder except the lock. A volume treats the node
//! like one that is away.

use std::os::unix::fs::symlink;

use fieldstone_proto::{MasterKey, NodeIndex, PoolId, crc32c};

use super::*;

/// Length of the part of the superblock that has data. The checksum covers it from byte 12 on.
const SECTOR_BYTES: usize = 512;

fn superblock() -> Superblock {
    Superblock {
        pool: PoolId(5),
        node: NodeIndex(2),
        nodes: 6,
        incarnation: 9,
        key: MasterKey([3; 16]),
        slot_bytes: 1 << 20,
        slots: 64,
        code: "rs:4+2".to_owned(),
    }
}

fn opening(path: &Path) -> Opening {
    Opening {
        path: path.to_path_buf(),
        expected: superblock(),
        keys: superblock().key.into(),
        holder: Holder::Server,
        registry: None,
        replace_missing: false,
    }
}

/// Every file of the folder with its bytes, except the lock, which each opening writes.
fn contents(path: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let named = entries.map(|entry| entry.expect("listed").file_name());
    let mut names: Vec<String> = named.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name != LOCK);
    names.sort();
    let read = |name: String| {
        let bytes = fs::read(path.join(&name)).unwrap_or_default();
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// Damages a node's folder with `spoil`. The opening must fail with an error that contains `says`,
/// and change nothing.
fn refuse(spoil: impl FnOnce(&Path), says: &[&str]) {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.2");
    create(&path, &superblock()).expect("made");
    fs::write(path.join("data"), "precious").expect("writable");
    spoil(&path);
    let before = contents(&path);
    let error = opening(&path).run().expect_err("it is spoiled").to_string();
    for word in says.iter().chain(&["node.2"]) {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
    assert_eq!(contents(&path), before, "something was changed");
}

fn change_superblock(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let file = path.join(SUPERBLOCK);
    let mut bytes = fs::read(&file).expect("readable");
    change(&mut bytes);
    fs::write(&file, &bytes).expect("writable");
}

/// Flips a bit of the superblock.
fn flip(path: &Path, at: usize) {
    change_superblock(path, |bytes| bytes[at] ^= 4);
}

/// Changes the superblock, and corrects the checksum.
fn forge(path: &Path, change: impl FnOnce(&mut [u8])) {
    change_superblock(path, |bytes| {
        change(bytes);
        let sum = crc32c(&bytes[12..SECTOR_BYTES]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    });
}

/// Puts the superblock of another node into the folder.
fn swap(path: &Path, other: &Superblock) {
    let bytes = other.encode().expect("it is valid");
    fs::write(path.join(SUPERBLOCK), bytes).expect("writable");
}

/// Makes a test of each row.
macro_rules! rows {
    ($($name:ident: $says:expr, |$path:ident| $spoil:expr;)*) => {
        $(
            #[test]
            fn $name() {
                refuse(|$path| $spoil, &$says);
            }
        )*
    };
}

rows! {
    superblock_magic_flipped: ["superblock", "magic"], |path| flip(path, 0);
    superblock_checksum_flipped: ["superblock", "damaged"], |path| flip(path, 8);
    superblock_version_flipped: ["superblock", "damaged"], |path| flip(path, 12);
    superblock_pool_flipped: ["superblock", "damaged"], |path| flip(path, 16);
    superblock_incarnation_flipped: ["superblock", "damaged"], |path| flip(path, 32);
    superblock_secret_flipped: ["superblock", "damaged"], |path| flip(path, 40);
    superblock_slot_size_flipped: ["superblock", "damaged"], |path| flip(path, 56);
    superblock_slots_flipped: ["superblock", "damaged"], |path| flip(path, 60);
    superblock_place_flipped: ["superblock", "damaged"], |path| flip(path, 64);
    superblock_nodes_flipped: ["superblock", "damaged"], |path| flip(path, 66);
    superblock_code_length_flipped: ["superblock", "damaged"], |path| flip(path, 68);
    superblock_zero_flipped: ["superblock", "damaged"], |path| flip(path, 69);
    superblock_code_flipped: ["superblock", "damaged"], |path| flip(path, 72);
    superblock_padding_flipped: ["superblock", "damaged"], |path| flip(path, 136);
    superblock_future_version: ["superblock", "version 9"], |path| forge(path, |b| b[12] = 9);
    superblock_slot_size_wrong: ["superblock", "invalid"], |path| forge(path, |b| b[56] = 1);
    superblock_cut_short: ["superblock", "cut off"],
        |path| change_superblock(path, |bytes| bytes.truncate(50));
    superblock_empty: ["superblock", "cut off"],
        |path| change_superblock(path, Vec::clear);
    superblock_missing: ["data but no superblock"],
        |path| fs::remove_file(path.join(SUPERBLOCK)).expect("removed");
    superblock_unreadable: ["superblock", "os error"], |path| {
        fs::remove_file(path.join(SUPERBLOCK)).expect("removed");
        fs::create_dir(path.join(SUPERBLOCK)).expect("made");
    };
    superblock_of_another_pool: ["belongs elsewhere", "expected was node.2 of pool"],
        |path| swap(path, &Superblock { pool: PoolId(6), ..superblock() });
    superblock_of_another_node: ["belongs elsewhere", "it is node.3"],
        |path| swap(path, &Superblock { node: NodeIndex(3), ..superblock() });
    superblock_with_another_secret: ["was made with another secret", "newest copy of"],
        |path| swap(path, &Superblock { key: MasterKey([4; 16]), ..superblock() });
    folder_missing: ["nothing lies at", "mount its disk"],
        |path| fs::remove_dir_all(path).expect("removed");
    folder_empty: ["is empty: is its disk mounted?"], |path| {
        fs::remove_dir_all(path).expect("removed");
        fs::create_dir(path).expect("made");
    };
    folder_is_a_file: ["is not a folder"], |path| {
        fs::remove_dir_all(path).expect("removed");
        fs::write(path, "").expect("writable");
    };
    folder_is_a_dangling_link: ["is a link to", "is its disk mounted?"], |path| {
        fs::remove_dir_all(path).expect("removed");
        symlink(path.with_file_name("away"), path).expect("linked");
    };
    folder_of_something_else: ["holds no storage node", "letter"], |path| {
        fs::remove_dir_all(path).expect("removed");
        fs::create_dir(path).expect("made");
        fs::write(path.join("letter"), "").expect("writable");
    };
    lock_unusable: ["lock", "os error"],
        |path| fs::create_dir(path.join(LOCK)).expect("made");
}

#[test]
fn lock_held() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.2");
    create(&path, &superblock()).expect("made");
    let first = opening(&path).run().expect("free");
    let error = opening(&path).run().expect_err("held").to_string();
    assert!(error.contains("in use by process"), "{error}");
    drop(first);
    opening(&path).run().expect("free again");
}

/// The address in `listen` counts only while the lock is held. Other content does no harm.
#[test]
fn listen_is_garbage() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.2");
    create(&path, &superblock()).expect("made");
    for text in ["", "garbage", "unix:/nowhere\n"] {
        fs::write(path.join(LISTEN), text).expect("writable");
        opening(&path).run().expect("it is free");
    }
}

/// A node can announce its address on a full disk: the file keeps its inode, length and blocks.
#[test]
fn listen_takes_no_room_after_the_first_start() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.2");
    create(&path, &superblock()).expect("made");
    drop(opening(&path).run().expect("free"));
    let place = || {
        let found = fs::metadata(path.join(LISTEN)).expect("there");
        (found.ino(), found.len(), found.blocks())
    };
    let before = place();
    for address in ["unix:/run/a", "tcp:127.0.0.1:7001"] {
        let node = opening(&path).run().expect("free");
        let address: Address = address.parse().expect("an address");
        node.announcer().announce(&address).expect("written in place");
        assert_eq!((announced(&path), place()), (Some(address), before));
        node.announcer().withdraw();
        assert_eq!((announced(&path), place()), (None, before));
    }
}
