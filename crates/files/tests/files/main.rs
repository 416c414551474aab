//! Encodings as users have them: folders with files, damaged in every way.

mod damage;
mod folders;
mod round_trip;
mod strangers;
mod support;
