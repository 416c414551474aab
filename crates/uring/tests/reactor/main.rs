//! The reactor against the real kernel: files and sockets in temporary folders.

mod common;
mod files;
mod mail;
mod quiet;
mod shutdown;
mod sockets;
mod timers;
