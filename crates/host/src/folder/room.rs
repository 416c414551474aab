//! The room that the file system has for a node. The node's slots are not always allocated in
//! advance.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fieldstone_node::FileId;

use super::file_name;

/// The unit of a file's allocated size, as `stat` reports it.
const STAT_BLOCK_BYTES: u64 = 512;

/// The most space that the node's data file can take: the space that it takes now, and the space
/// that the file system has left.
///
/// # Errors
/// The system reports no values for the file or the file system.
pub fn room_bytes(folder: &Path) -> io::Result<u64> {
    let data = std::fs::metadata(folder.join(file_name(FileId::Data)))?;
    let allocated_bytes = data.blocks().saturating_mul(STAT_BLOCK_BYTES);
    Ok(allocated_bytes.saturating_add(free_bytes(folder)?))
}

/// Free space of the file system with `folder`, in bytes.
///
/// # Errors
/// The system reports no values for the file system.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let name = CString::new(folder.as_os_str().as_bytes())
        .map_err(|_| io::Error::other("the path contains a zero byte"))?;
    let mut info = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `name` is a C string and `info` a valid place for the result.
    let failed = unsafe { libc::statvfs(name.as_ptr(), info.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeroes is a valid statvfs, and the call filled it in.
    let info = unsafe { info.assume_init() };
    Ok(info.f_bavail.saturating_mul(info.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_counts_beside_what_is_free() {
        let temp = tempfile::tempdir().expect("a folder");
        let path = temp.path().join(file_name(FileId::Data));
        let data = std::fs::File::create(&path).expect("made");
        data.set_len(1 << 30).expect("sparse");
        let free = free_bytes(temp.path()).expect("known");
        let room = room_bytes(temp.path()).expect("known");
        assert!(room >= free / 2, "a sparse file takes nothing: {room} of {free}");
        std::fs::write(&path, vec![1; 1 << 20]).expect("written");
        data.sync_all().expect("allocated");
        assert!(std::fs::metadata(&path).expect("there").blocks() > 0);
        assert!(room_bytes(temp.path()).expect("known") >= free / 2);
        assert!(room_bytes(&temp.path().join("none")).is_err());
    }
}
