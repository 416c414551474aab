//! Encodings as users have them: folders with files, damaged in every way.

mod accelerator;
mod damage;
mod folders;
mod hostile;
mod round_trip;
mod support;
