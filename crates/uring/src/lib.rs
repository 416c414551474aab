//! The real world: one io_uring reactor per core
