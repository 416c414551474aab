//! The folder of the cluster: the configuration file and the keyring that clients read.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fieldstone_crush::osdmap::Fsid;
use fieldstone_rados::auth::CryptoKey;

use crate::{Method, StartError};

/// Makes the folder, and gives its full path.
pub(crate) fn make(folder: &Path) -> Result<PathBuf, StartError> {
    let failed = |reason| StartError::Folder { path: folder.to_owned(), reason };
    fs::create_dir_all(folder).map_err(failed)?;
    fs::canonicalize(folder).map_err(failed)
}

/// Writes the files. `key` is the key of `client.admin`; without one, clients need no key.
pub(crate) fn write(
    folder: &Path,
    fsid: [u8; 16],
    monitor: SocketAddr,
    key: Option<&CryptoKey>,
) -> Result<PathBuf, StartError> {
    let keyring = folder.join("keyring");
    if let Some(key) = key {
        let text = format!("[client.admin]\n\tkey = {}\n", key.to_base64());
        write_file(&keyring, &text, 0o600)?;
    }
    let method = if key.is_some() { Method::Cephx } else { Method::None };
    let conf = folder.join("ceph.conf");
    write_file(&conf, &configuration(Fsid(fsid), monitor, method, &keyring), 0o644)?;
    Ok(conf)
}

fn configuration(fsid: Fsid, monitor: SocketAddr, method: Method, keyring: &Path) -> String {
    let method = method.name();
    let mut text = format!(
        "# Written by fieldstone rados null-cluster.\n\
         [global]\n\
         fsid = {fsid}\n\
         mon_host = [v2:{monitor}/0]\n\
         auth_cluster_required = {method}\n\
         auth_service_required = {method}\n\
         auth_client_required = {method}\n"
    );
    if method == Method::Cephx.name() {
        text += &format!("keyring = {}\n", keyring.display());
    }
    // A server of this cluster does not tell a client its address; the client asks its own socket.
    text += "ms_learn_addr_from_peer = false\n\
             [client]\n\
             admin_socket =\n\
             log_file =\n";
    text
}

fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), StartError> {
    let failed = |reason| StartError::Folder { path: path.to_owned(), reason };
    // A file of an earlier cluster goes first, so that the new one has this mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)
}
