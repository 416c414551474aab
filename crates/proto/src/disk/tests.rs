use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    BLOCK_BYTES, Epoch, JournalGen, Lsn, MasterKey, NodeIndex, PoolId, SealMeta, SegmentId,
    SegmentKind, ShardIndex, VolumeId,
};

fn superblock() -> Superblock {
    Superblock {
        pool: PoolId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        node: NodeIndex(3),
        nodes: 6,
        incarnation: 0x0123_4567_89ab_cdef,
        key: MasterKey([0x5a; 16]),
        slot_bytes: 1 << 20,
        slots: 77,
        code: "rs:4+2".to_owned(),
    }
}

fn record(sequence: u64, epoch: u64, root: &[u8]) -> VolumeRecord {
    VolumeRecord {
        volume: VolumeId(5),
        sequence,
        epoch: Epoch(epoch),
        root_version: sequence,
        root: Bytes::copy_from_slice(root),
        slots_reserved: 40,
    }
}

fn put(file: &mut [u8], record: &VolumeRecord) {
    let at = usize::try_from(record.offset_bytes()).unwrap();
    let bytes = record.encode();
    file[at..at + bytes.len()].copy_from_slice(&bytes);
}

#[test]
fn superblock_bytes_are_fixed() {
    let bytes = superblock().encode().unwrap();
    assert_eq!(bytes.len(), BLOCK_BYTES);
    assert_eq!(&bytes[..8], b"FSTNSUPR");
    assert_eq!(bytes[12..16], [2, 0, 0, 0]);
    assert_eq!(bytes[16..24], [0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88]);
    assert_eq!(bytes[32..40], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
    assert_eq!(bytes[40..56], [0x5a; 16]);
    assert_eq!(bytes[56..69], [0, 0, 0x10, 0, 77, 0, 0, 0, 3, 0, 6, 0, 6]);
    assert_eq!(&bytes[72..79], b"rs:4+2\0");
    assert_eq!(Superblock::decode(&bytes).unwrap(), superblock());
}

#[test]
fn superblock_errors_name_the_cause() {
    let good = superblock().encode().unwrap();
    let refuse = |bytes: &[u8]| Superblock::decode(bytes).unwrap_err();
    assert!(matches!(refuse(&[0; 4096]), DiskFormatError::Blank { .. }));
    assert!(matches!(refuse(&good[..100]), DiskFormatError::Truncated { len_bytes: 100, .. }));
    assert!(matches!(refuse(&[7; 4096]), DiskFormatError::WrongMagic { .. }));
    let mut future = good.to_vec();
    future[12] = 9;
    assert!(matches!(refuse(&future), DiskFormatError::Damaged { .. }));
    let crc = crate::crc32c(&future[12..SECTOR_BYTES]);
    future[8..12].copy_from_slice(&crc.to_le_bytes());
    let error = refuse(&future);
    assert_eq!(
        error.to_string(),
        "the superblock has version 9, this program knows versions up to 2"
    );
    future[12] = 1;
    let crc = crate::crc32c(&future[12..SECTOR_BYTES]);
    future[8..12].copy_from_slice(&crc.to_le_bytes());
    assert!(refuse(&future).to_string().contains("make the pool anew"));
    for field in [
        Superblock { code: "x".repeat(65), ..superblock() },
        Superblock { slot_bytes: 4097, ..superblock() },
        Superblock { slot_bytes: 4 << 20, ..superblock() },
        Superblock { slots: 0, ..superblock() },
        Superblock { nodes: 3, ..superblock() },
    ] {
        assert!(matches!(field.encode(), Err(DiskFormatError::Invalid { .. })), "{field:?}");
    }
}

#[test]
fn volume_file_keeps_the_old_record_while_the_new_one_is_torn() {
    let mut file = vec![0; VOLUME_FILE_BYTES];
    let read = |file: &[u8]| VolumeRecord::decode_file(&Bytes::copy_from_slice(file), VolumeId(5));
    assert!(matches!(read(&file), Err(DiskFormatError::Blank { .. })));
    put(&mut file, &record(1, 7, b""));
    put(&mut file, &record(2, 7, b"old root"));
    assert_eq!(read(&file).unwrap(), record(2, 7, b"old root"));
    put(&mut file, &record(3, 8, b"new root"));
    assert_eq!(read(&file).unwrap(), record(3, 8, b"new root"));
    // The header of record 3 reached the disk, its root did not.
    file[VOLUME_SLOT_BYTES + BLOCK_BYTES] ^= 1;
    let torn = read(&file).unwrap();
    assert_eq!((torn.epoch, torn.sequence), (Epoch(8), 2), "the epoch counts, the root does not");
    assert_eq!(&torn.root[..], b"old root");
    // A damaged header may have held a higher epoch.
    file[VOLUME_SLOT_BYTES + 40] ^= 1;
    assert!(matches!(read(&file), Err(DiskFormatError::Damaged { .. })));
    let other = VolumeRecord::decode_file(&Bytes::from(file), VolumeId(6));
    assert!(matches!(other, Err(DiskFormatError::Invalid { .. })));
}

#[test]
fn journal_header_is_tied_to_its_file() {
    let header = JournalHeader { volume: VolumeId(1), generation: JournalGen(2), ring_bytes: 8192 };
    let bytes = header.encode();
    assert_eq!(JournalHeader::decode(&bytes, VolumeId(1), JournalGen(2)), Ok(header));
    for (volume, generation) in [(2, 2), (1, 1)] {
        let refused = JournalHeader::decode(&bytes, VolumeId(volume), JournalGen(generation));
        assert!(matches!(refused, Err(DiskFormatError::Invalid { .. })));
    }
}

fn any_slot_header() -> impl Strategy<Value = SlotHeader> {
    let fields = (any::<u128>(), any::<u64>(), any::<u8>(), any::<u64>(), any::<u64>());
    let rest = (any::<u64>(), any::<u32>(), any::<u64>(), any::<bool>());
    let checksums = proptest::collection::vec(any::<u32>(), 1..=SLOT_BLOCKS_MAX);
    (fields, rest, checksums).prop_map(|(fields, rest, checksums)| SlotHeader {
        volume: VolumeId(fields.0),
        segment: SegmentId(fields.1),
        shard: ShardIndex(fields.2),
        epoch: Epoch(fields.3),
        sequence: fields.4,
        incarnation: rest.0,
        slot: rest.1,
        meta: SealMeta {
            kind: if rest.3 { SegmentKind::Data } else { SegmentKind::Checkpoint },
            lsn_first: Lsn(rest.2),
            lsn_end: Lsn(rest.2 ^ fields.4),
            shard_bytes: u32::try_from(checksums.len() * BLOCK_BYTES).unwrap(),
        },
        stable_below: rest.0 ^ fields.1,
        checksums,
    })
}

proptest! {
    #[test]
    fn slot_headers_round_trip_and_every_flipped_bit_shows(
        header in any_slot_header(), bit in 0usize..BLOCK_BYTES * 8
    ) {
        let bytes = header.encode();
        prop_assert_eq!(SlotHeader::decode(&bytes).unwrap(), header);
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(SlotHeader::decode(&damaged).is_err());
    }

    #[test]
    fn open_notes_round_trip_and_every_flipped_bit_shows(
        header in any_slot_header(), bit in 0usize..SECTOR_BYTES * 8
    ) {
        let SlotHeader { volume, segment, shard, epoch, sequence, incarnation, slot, .. } = header;
        let stable_below = header.stable_below;
        let note =
            OpenNote { volume, segment, shard, epoch, sequence, incarnation, slot, stable_below };
        let bytes = note.encode();
        prop_assert_eq!(OpenNote::decode(&bytes).unwrap(), note);
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(OpenNote::decode(&damaged).is_err());
    }

    #[test]
    fn noise_is_refused_without_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        prop_assert!(SlotHeader::decode(&bytes).is_err());
        prop_assert!(Superblock::decode(&bytes).is_err());
        prop_assert!(JournalHeader::decode(&bytes, VolumeId(0), JournalGen(0)).is_err());
        bytes.resize(VOLUME_FILE_BYTES, 3);
        prop_assert!(VolumeRecord::decode_file(&Bytes::from(bytes), VolumeId(0)).is_err());
    }
}
