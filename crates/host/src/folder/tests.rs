//! Tests with folders that are present, missing, empty, locked, damaged, foreign and replaced.

use super::*;
use fieldstone_proto::{MasterKey, NodeIndex, PoolId};

fn superblock(node: u16) -> Superblock {
    Superblock {
        pool: PoolId(5),
        node: NodeIndex(node),
        nodes: 6,
        incarnation: 9,
        key: MasterKey([3; 16]),
        slot_bytes: 1 << 20,
        slots: 64,
        code: "rs:4+2".to_owned(),
    }
}

/// Allows new nodes, except the one that it refuses, and records nodes that were found and made.
#[derive(Debug, Default)]
struct Witness {
    refuses: Option<u16>,
    told: std::sync::Mutex<Vec<&'static str>>,
}

impl NodeRegistry for Witness {
    fn seen(&self, _: NodeIndex, _: &Path, incarnation: u64) {
        assert_eq!(incarnation, 9);
        self.told.lock().expect("no panic").push("seen");
    }
    fn may_replace(&self, node: NodeIndex, _: &Path) -> Result<(), String> {
        if self.refuses == Some(node.0) { Err("of a test".to_owned()) } else { Ok(()) }
    }
    fn made(&self, _: NodeIndex, _: &Path, _: u64) {
        self.told.lock().expect("no panic").push("made");
    }
}

fn opening(path: &Path, node: u16, replace_missing: bool) -> Opening {
    Opening {
        path: path.to_path_buf(),
        expected: superblock(node),
        keys: superblock(node).key.into(),
        holder: Holder::Server,
        registry: Some(Arc::new(Witness::default())),
        replace_missing,
    }
}

#[test]
fn names_and_files_are_one_to_one() {
    let volume = VolumeId(0xabc);
    for file in [
        FileId::Superblock,
        FileId::Slots,
        FileId::Data,
        FileId::Doubt,
        FileId::Volume(volume),
        FileId::Journal(volume, JournalGen(12)),
    ] {
        assert_eq!(file_id(&file_name(file)), Some(file));
    }
    for name in ["", "lock", "listen", "volume.", "volume.xyz", "volume.1", "journal.1.2", "x"] {
        assert_eq!(file_id(name), None, "{name}");
    }
}

#[test]
fn a_folder_is_made_opened_locked_and_told_apart() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.3");
    assert!(matches!(opening(&path, 3, false).run(), Err(FolderError::Missing(_))));
    let first = opening(&path, 3, true).run().expect("made");
    assert!(first.created && first.superblock == superblock(3));
    let refused = opening(&path, 3, true).run().expect_err("locked");
    assert!(matches!(refused, FolderError::InUse { .. }));
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    let announcer = first.announcer();
    announcer.announce(&"unix:/x".parse().expect("an address")).expect("writable");
    assert!(matches!(opening(&path, 3, true).run(), Err(FolderError::Node { .. })));
    announcer.withdraw();
    drop(first);
    let again = opening(&path, 3, false).run().expect("there");
    assert!(!again.created && again.identity.is_at(&path));
    drop(again);
    let stranger = opening(&path, 4, false).run().expect_err("another node");
    assert!(stranger.to_string().contains("node.3"), "{stranger}");
}

#[test]
fn a_node_is_made_only_where_nothing_lies_and_the_registry_allows_it() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    let registry = Arc::new(Witness { refuses: Some(1), ..Witness::default() });
    let with =
        |node: u16| Opening { registry: Some(registry.clone()), ..opening(&path, node, true) };
    let error = |opening: &Opening| opening.run().expect_err("refused").to_string();
    let refused = error(&with(1));
    assert!(refused.contains("of a test") && refused.contains("pool replace"), "{refused}");
    let without = Opening { registry: None, ..opening(&path, 0, true) };
    assert!(error(&without).contains("--node I=ADDR"));
    std::os::unix::fs::symlink(temp.path().join("away"), &path).expect("linked");
    assert!(error(&with(0)).contains("is a link to"));
    assert!(create(&path, &superblock(0)).is_err(), "a node behind a dangling link");
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "").expect("writable");
    assert!(error(&with(0)).contains("not a folder"));
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    assert!(error(&with(0)).contains("is its disk mounted?"));
    fs::write(path.join("letter"), "").expect("writable");
    assert!(error(&with(0)).contains("letter"));
    assert!(create(&path, &superblock(0)).is_err(), "a node among other files");
    fs::remove_dir_all(&path).expect("removed");
    assert!(registry.told.lock().expect("no panic").is_empty());
    assert!(with(0).run().expect("made").created);
    assert!(!with(0).run().expect("there").created);
    assert_eq!(*registry.told.lock().expect("no panic"), ["made", "seen", "seen"]);
    // The files of a new file system or an interrupted creation do not prevent a creation.
    fs::remove_file(path.join(SUPERBLOCK)).expect("removed");
    fs::remove_file(path.join(LOCK)).expect("removed");
    fs::remove_file(path.join(LISTEN)).expect("removed");
    fs::create_dir(path.join(LOST_AND_FOUND)).expect("made");
    fs::write(path.join(PARTIAL), "half").expect("writable");
    create(&path, &superblock(0)).expect("made");
    assert_eq!(find_node(&path, &superblock(0)).expect("there"), superblock(0));
    assert!(matches!(create(&path, &superblock(0)), Err(FolderError::Exists { .. })));
}

#[test]
fn what_a_node_does_after_its_folder_is_gone_stays_out_of_the_next_one() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    let folder = opening(&path, 0, true).run().expect("made");
    let aside = temp.path().join("aside");
    fs::rename(&path, &aside).expect("moved");
    create(&path, &superblock(0)).expect("made");
    let journal = "journal.00000000000000000000000000000abc.1";
    create_file(&folder.dir.path().join(journal), 4096, false).expect("made");
    assert!(aside.join(journal).exists() && !path.join(journal).exists());
}

#[test]
fn a_predecessors_operations_are_waited_for() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    create(&path, &superblock(0)).expect("made");
    let data = fs::File::create(path.join("data")).expect("writable");
    mark_used(&data).expect("free");
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        drop(data);
    });
    let start = Instant::now();
    opening(&path, 0, false).run().expect("free in the end");
    assert!(start.elapsed() >= Duration::from_millis(50));
    release.join().expect("no panic");
}

/// A process that has taken the lock writes its number and kind a moment later. Until then the lock
/// names the process before it.
#[test]
fn the_name_of_the_locks_last_holder_is_not_believed() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    create(&path, &superblock(0)).expect("made");
    let lock = LockFile::acquire(&path.join(LOCK), Holder::Command).expect("free");
    let command = fs::read(path.join(LOCK)).expect("readable");
    // This is beyond the largest process number.
    fs::write(path.join(LOCK), format!("{}\nserver\n", 1 << 30)).expect("writable");
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            std::thread::sleep(Duration::from_millis(60));
            fs::write(path.join(LOCK), command).expect("writable");
        }
    });
    let refused = opening(&path, 0, false).run().expect_err("held");
    assert!(
        matches!(refused, FolderError::InUse { holder: Some(Holder::Command), .. }),
        "{refused}"
    );
    writer.join().expect("no panic");
    drop(lock);
    opening(&path, 0, false).run().expect("free");
}

#[test]
fn a_replaced_folder_is_noticed() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    let folder = opening(&path, 0, true).run().expect("made");
    assert!(folder.identity.is_at(&path));
    fs::rename(&path, temp.path().join("aside")).expect("moved");
    assert!(!folder.identity.is_at(&path));
    create(&path, &superblock(0)).expect("made");
    assert!(!folder.identity.is_at(&path));
}

#[test]
fn damage_is_named_and_left_alone() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    create(&path, &superblock(0)).expect("made");
    let file = path.join(SUPERBLOCK);
    let mut bytes = fs::read(&file).expect("readable");
    bytes[20] ^= 1;
    fs::write(&file, &bytes).expect("writable");
    let error = opening(&path, 0, true).run().expect_err("damaged");
    assert!(matches!(error, FolderError::Superblock { .. }), "{error}");
    assert!(error.to_string().contains("superblock"), "{error}");
    fs::remove_file(&file).expect("removed");
    fs::write(path.join("data"), "precious").expect("writable");
    assert!(matches!(opening(&path, 0, true).run(), Err(FolderError::NoSuperblock(_))));
}

/// Opening or reading a FIFO waits for the other end. The opening refuses a FIFO in place of a file
/// of the node, and ignores one in place of `listen`.
#[test]
fn a_fifo_among_a_nodes_files_stops_no_opening() {
    use std::os::unix::ffi::OsStrExt;
    for (name, opens) in
        [(SUPERBLOCK, false), (LOCK, false), ("slots", false), ("data", false), (LISTEN, true)]
    {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.0");
        create(&path, &superblock(0)).expect("made");
        let file = path.join(name);
        let _ = fs::remove_file(&file);
        let file = std::ffi::CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: `file` is a C string.
        assert_eq!(unsafe { libc::mkfifo(file.as_ptr(), 0o600) }, 0);
        let (done, outcome) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(done.send(opening(&path, 0, false).run())));
        let opened = outcome.recv_timeout(Duration::from_secs(20)).expect("the opening hangs");
        match opened {
            Ok(_) => assert!(opens, "{name}"),
            Err(error) => {
                let text = error.to_string();
                assert!(!opens && text.contains(name) && text.contains("not a regular"), "{text}");
            }
        }
    }
}

/// If the operations of a predecessor do not end, the error says so.
#[test]
fn a_predecessors_operations_that_do_not_end_are_told() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.0");
    create(&path, &superblock(0)).expect("made");
    let data = fs::File::create(path.join("data")).expect("writable");
    mark_used(&data).expect("free");
    let error = opening(&path, 0, false).run().expect_err("in use");
    assert!(matches!(error, FolderError::Stragglers(_)), "{error}");
    assert!(error.to_string().contains("a process that has ended"), "{error}");
    drop(data);
    opening(&path, 0, false).run().expect("free again");
}
