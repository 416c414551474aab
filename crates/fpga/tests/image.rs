//! Maps that become images, and the reasons of those that do not.

use std::path::PathBuf;

use fieldstone_crush::{Map, WEIGHT_ONE, text};
use fieldstone_fpga::image::Image;

/// The maps that Ceph's crushtool has answered for.
fn oracle_maps() -> Vec<(String, Map)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crush/tests/data/maps");
    let mut maps: Vec<(String, Map)> = std::fs::read_dir(folder)
        .expect("the folder exists")
        .map(|entry| {
            let path = entry.expect("it can be read").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let source = std::fs::read_to_string(&path).expect("it can be read");
            (name, text::parse(&source).expect("it is a map"))
        })
        .collect();
    maps.sort_by(|a, b| a.0.cmp(&b.0));
    maps
}

#[test]
fn oracle_maps_fit_or_say_why_not() {
    let mut refused = Vec::new();
    let mut left_out = Vec::new();
    for (name, map) in oracle_maps() {
        let weights = vec![WEIGHT_ONE; map.max_devices() as usize];
        for args in std::iter::once(None).chain(map.choose_args().values().map(Some)) {
            match Image::compile(&map, &weights, args) {
                Ok(image) => {
                    assert_eq!(image.bytes().len() % 64, 0);
                    for (id, _) in map.rules() {
                        if let Some(misfit) = image.misfit(id) {
                            left_out.push(format!("{name} {}: {misfit}", id.0));
                        }
                    }
                }
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
    }
    println!("refused:\n{}\nrules left out:\n{}", refused.join("\n"), left_out.join("\n"));
}
