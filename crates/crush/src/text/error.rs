//! The errors of text maps.

use thiserror::Error;

use super::lexer::Place;
use crate::check::BuildError;

/// Why a text is no map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}, column {column}: {problem}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: u32,
    /// The character of the line, from 1.
    pub column: u32,
    /// The error.
    pub problem: Problem,
}

/// An error at a place of a text map. Words are cut to a length that can be shown.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// The text has another word than the language allows here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// The allowed words.
        expected: &'static str,
        /// The word in the text, or its end.
        found: String,
    },
    /// A word without a meaning here.
    #[error("unknown {what} `{found}`; there are {known}")]
    Unknown {
        /// The kind of the word.
        what: &'static str,
        /// The word.
        found: String,
        /// The words with a meaning here.
        known: String,
    },
    /// A word that is no number, or a number that does not fit.
    #[error("{what} is a number from {from} to {to}, not `{found}`")]
    Number {
        /// The name of the number.
        what: &'static str,
        /// The word.
        found: String,
        /// The smallest allowed number.
        from: i64,
        /// The greatest allowed number.
        to: i64,
    },
    /// A word that is no weight, or a weight that does not fit.
    #[error(
        "a weight is a number from 0 to below 65536, like 1.50000, not `{found}`{}",
        if found.starts_with('-') {
            " (crushtool prints 65536 too little for weights of 32768 and more: add that)"
        } else {
            ""
        }
    )]
    Weight {
        /// The word.
        found: String,
    },
    /// An undefined name.
    #[error("no {what} is called `{name}`; it must be defined before it is used")]
    Undefined {
        /// The kind of the name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name or number that is already in use.
    #[error("{what} `{name}` is already defined")]
    Duplicate {
        /// The kind of the name or number.
        what: &'static str,
        /// The name or number.
        name: String,
    },
    /// A position that is in use or past the end.
    #[error("position {position} is taken, or not below the number of items, which is {items}")]
    Position {
        /// The position.
        position: usize,
        /// Items of the bucket.
        items: usize,
    },
    /// Items of a uniform bucket have different weights.
    #[error("the items of a uniform bucket must all weigh the same as the first, {first}")]
    NotUniform {
        /// The weight of the first item.
        first: String,
    },
    /// A bucket is too heavy.
    #[error("the items of bucket `{bucket}` weigh 65536 or more together; lower their weights")]
    TooHeavy {
        /// The bucket.
        bucket: String,
    },
    /// A bucket would get no shadows.
    #[error("bucket `{bucket}` must stand before the first rule, for this map has classes")]
    AfterRules {
        /// The bucket.
        bucket: String,
    },
    /// A step takes a shadow that does not exist.
    #[error(
        "`{item}` has no shadow of class `{class}`: only buckets have, and none are made from the \
         first uniform bucket on whose items of a class have weight"
    )]
    NoShadow {
        /// The item.
        item: String,
        /// The class.
        class: String,
    },
    /// More shadows than the bounds allow.
    #[error("the classes and buckets make too many shadow buckets")]
    TooManyShadows,
    /// A list has another length than its bucket's items.
    #[error("the bucket has {items} items, so {items} {what} are needed, not {found}")]
    Length {
        /// The kind of the members.
        what: &'static str,
        /// Items of the bucket.
        items: usize,
        /// Members of the list.
        found: usize,
    },
    /// A number exceeds the bounds of all maps.
    #[error(transparent)]
    Map(#[from] BuildError),
}

impl Problem {
    pub(super) fn at(self, place: Place) -> ParseError {
        ParseError { line: place.line, column: place.column, problem: self }
    }
}

/// A word in the form that messages show.
pub(super) fn shown(word: &str) -> String {
    const MOST: usize = 40;
    match word.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &word[..end]),
        None => word.to_owned(),
    }
}
