//! Settings of a NIC: what makes no context.
#![allow(clippy::unwrap_used)]

use fieldstone_nic::firmware::state::{
    EXTENTS, ElementColumn, Extent, KEYS, Multiply, Settings, SettingsError,
};
use fieldstone_proto::capability::MasterKey;
use fieldstone_proto::ids::{Epoch, SegmentId, VolumeId};

const LENGTH: u32 = 1 << 20;

fn extent(segment: u64, base: u64) -> Extent {
    let volume = VolumeId(7 << 64 | 300);
    Extent { volume, segment: SegmentId(segment), base, length: LENGTH }
}

fn settings(extents: Vec<Extent>) -> Settings {
    Settings {
        node: 1,
        host_len: 1 << 30,
        staging_len: 0,
        keys: Vec::new(),
        extents,
        coefficients: Vec::new(),
        multiply: Multiply::Table,
        column: 0,
        elements: None,
    }
}

#[test]
fn a_nic_holds_eight_keys() {
    let key = (MasterKey([1; 16]), VolumeId(1), Epoch(1));
    let of = |keys| Settings { keys: vec![key; keys], ..settings(Vec::new()) }.context();
    assert!(of(KEYS).is_ok());
    assert_eq!(of(KEYS + 1), Err(SettingsError::Keys(KEYS + 1)));
}

#[test]
fn extents_are_inside_of_storage_and_apart() {
    let length = u64::from(LENGTH);
    let at = |extents| settings(extents).context().map(|_| ());
    let last = extent(1, (1 << 30) - length);
    assert_eq!(at(vec![last, extent(2, 0), extent(3, length)]), Ok(()));
    for base in [last.base + 1, u64::MAX] {
        let outside = extent(1, base);
        assert_eq!(at(vec![outside]), Err(SettingsError::Outside(outside)));
    }
    let (low, high) = (extent(5, 1000), extent(4, 999 + length));
    assert_eq!(at(vec![high, low]), Err(SettingsError::Overlap(low, high)));
    let (one, same) = (extent(1, 0), extent(1, 5 * length));
    let error = at(vec![one, extent(2, length), same]).unwrap_err();
    assert_eq!(error, SettingsError::Overlap(one, same));
    assert!(error.to_string().contains("segment 1 of volume 0000000000000007"), "{error}");
}

/// A full table of segments that follow each other; and segments that all have the same first entry
/// of the eight that may have them.
#[test]
fn the_table_of_extents_is_bounded() {
    let length = u64::from(LENGTH);
    let follow = |n: u64| (0..n).map(|i| extent(1000 + i, i * length)).collect();
    assert!(settings(follow(EXTENTS as u64)).context().is_ok());
    let one_more = settings(follow(EXTENTS as u64 + 1)).context();
    assert!(matches!(one_more, Err(SettingsError::NoEntry(_))), "{:?}", one_more.err());
    let same = |n: u64| (0..n).map(|i| extent(i * EXTENTS as u64, i * length)).collect();
    assert!(settings(same(8)).context().is_ok());
    let error = settings(same(9)).context().unwrap_err();
    assert_eq!(error, SettingsError::NoEntry(extent(8 * EXTENTS as u64, 8 * length)));
}

#[test]
fn elements_go_to_one_place_each() {
    let zigzag = ElementColumn::of("zigzag:4+2", 1).unwrap();
    let of = |elements| Settings { elements: Some(elements), ..settings(Vec::new()) }.context();
    assert!(of(zigzag.clone()).is_ok());
    let changed = |change: fn(&mut ElementColumn)| {
        let mut elements = zigzag.clone();
        change(&mut elements);
        of(elements).map(|_| ())
    };
    let refused = Err(SettingsError::Elements);
    assert_eq!(changed(|elements| elements.terms[1][3].0 = elements.terms[1][4].0), refused);
    assert_eq!(changed(|elements| elements.terms[1][3].0 = 8), refused);
    assert_eq!(changed(|elements| elements.terms[0].truncate(7)), refused);
    assert_eq!(changed(|elements| elements.terms.truncate(1)), refused);
    let long = |elements: &mut ElementColumn| {
        elements.terms.iter_mut().for_each(|row| *row = (0..16).map(|at| (at, 1)).collect());
    };
    assert_eq!(changed(long), refused);
}
