//! Finds images: from names to ids, and back.

use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use crate::error::RbdError;
use crate::format::{class, names};
use crate::store::{Answers, Store};

/// Images in one answer of the directory (Ceph's own bound is 1024).
const IMAGES_IN_ANSWER: u64 = 1024;

/// The id of an image.
///
/// # Errors
/// There is no such image, or the cluster answers with an error.
pub async fn id_of(store: &Store, name: &str) -> Result<String, RbdError> {
    let mut ops = ObjectOps::new();
    class::get_id(&mut ops);
    match store.send(&names::id_object(name), ops).await {
        Ok(reply) => Answers::new(reply, name, "reading its id").next(class::decode_text),
        Err(Errno::ENOENT) => Err(RbdError::NoImage(name.to_owned())),
        Err(errno) => Err(RbdError::cluster(name, "reading its id", errno)),
    }
}

/// The id of an image as the directory has it. It differs from [`id_of`] while an image is made,
/// renamed or removed.
///
/// # Errors
/// There is no such image, or the cluster answers with an error.
pub async fn id_in_directory(store: &Store, name: &str) -> Result<String, RbdError> {
    let mut ops = ObjectOps::new();
    class::dir_get_id(&mut ops, name);
    match store.send(names::DIRECTORY, ops).await {
        Ok(reply) => Answers::new(reply, name, "reading its id").next(class::decode_text),
        Err(Errno::ENOENT) => Err(RbdError::NoImage(name.to_owned())),
        Err(errno) => Err(RbdError::cluster(name, "reading its id", errno)),
    }
}

/// The name of the image with this id.
///
/// # Errors
/// There is no such image, or the cluster answers with an error.
pub async fn name_of(store: &Store, id: &str) -> Result<String, RbdError> {
    let mut ops = ObjectOps::new();
    class::dir_get_name(&mut ops, id);
    match store.send(names::DIRECTORY, ops).await {
        Ok(reply) => Answers::new(reply, id, "reading its name").next(class::decode_text),
        Err(Errno::ENOENT) => Err(RbdError::NoImage(format!("with the id {id}"))),
        Err(errno) => Err(RbdError::cluster(id, "reading its name", errno)),
    }
}

/// All images: names and ids, in the order of names.
///
/// # Errors
/// The cluster answers with an error.
pub async fn list(store: &Store) -> Result<Vec<(String, String)>, RbdError> {
    let mut images: Vec<(String, String)> = Vec::new();
    loop {
        let after = images.last().map_or("", |(name, _)| name.as_str());
        let mut ops = ObjectOps::new();
        class::dir_list(&mut ops, after, IMAGES_IN_ANSWER);
        let part = match store.send(names::DIRECTORY, ops).await {
            Ok(reply) => Answers::new(reply, names::DIRECTORY, "the list of images")
                .next(class::decode_directory)?,
            // A pool without images has no directory.
            Err(Errno::ENOENT) => Vec::new(),
            Err(errno) => {
                return Err(RbdError::cluster(names::DIRECTORY, "the list of images", errno));
            }
        };
        let last = part.last().map(|(name, _)| name.clone());
        let advances = last.is_some_and(|last| last.as_str() > after);
        if !advances {
            return Ok(images);
        }
        images.extend(part);
    }
}
