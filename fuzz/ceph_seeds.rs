//! Writes the valid inputs from which `ceph_frames`, `ceph_payload`, `ceph_text`, `rbd_answer` and
//! `luks_header` start into folders of these names in the folder given.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: ceph_seeds FOLDER"));
    };
    let seeds = [
        ("ceph_frames", fieldstone_rados::fuzz::frame_seeds()),
        ("ceph_payload", fieldstone_rados::fuzz::payload_seeds()),
        ("ceph_text", fieldstone_rados::fuzz::text_seeds()),
        ("rbd_answer", fieldstone_rbd::fuzz::seeds()),
        ("luks_header", fieldstone_luks::fuzz::seeds()),
    ];
    for (name, seeds) in seeds {
        std::fs::create_dir_all(folder.join(name))?;
        for (index, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(name).join(format!("seed-{index}")), seed)?;
        }
    }
    Ok(())
}
