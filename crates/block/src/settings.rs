//! A layer's options as text: `cache:capacity=64M,bypass=128K`.
//!
//! A layer asks for each option that it knows, by its name and with the variable for the value. An
//! option that remains is unknown, and the error lists the options that the layer asked for. So the
//! code that reads the options is the only place that names them.

use std::fmt;
use std::str::FromStr;

use crate::Nanos;

/// Why a layer refused options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The text is not of the form `LAYER:OPTION=VALUE,…` or `LAYER:off`.
    #[error("{text:?} is not of the form LAYER:OPTION=VALUE,OPTION=VALUE or LAYER:off")]
    Malformed {
        /// The text.
        text: String,
    },
    /// There is no such layer.
    #[error("there is no layer {layer:?}; there are {known}")]
    UnknownLayer {
        /// The name given.
        layer: String,
        /// The names of all layers.
        known: String,
    },
    /// The layer has no such option.
    #[error("the layer {layer} has no option {option:?}; it has {known}")]
    UnknownOption {
        /// The layer.
        layer: String,
        /// The name given.
        option: String,
        /// The names of the layer's options.
        known: String,
    },
    /// The value cannot be read.
    #[error("{layer}: {option}: {why}")]
    BadValue {
        /// The layer.
        layer: String,
        /// The option.
        option: String,
        /// The reason.
        why: String,
    },
    /// The layer's options cannot be changed while the device serves.
    #[error("the layer {layer} cannot be changed while the device serves ({text})")]
    Fixed {
        /// The layer.
        layer: String,
        /// The requested options.
        text: String,
    },
}

/// The options of one layer, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    layer: String,
    /// Options that the layer has not asked for yet.
    values: Vec<(String, String)>,
    /// Options that the layer has asked for.
    known: Vec<&'static str>,
}

impl Settings {
    /// No options for a layer of this name.
    #[must_use]
    pub fn none(layer: &str) -> Self {
        Self { layer: layer.to_owned(), values: Vec::new(), known: Vec::new() }
    }

    /// Reads `LAYER` or `LAYER:OPTION=VALUE,OPTION=VALUE`. If an option is given twice, the last
    /// value counts.
    ///
    /// # Errors
    /// The text does not have this form.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        let malformed = || SettingError::Malformed { text: text.to_owned() };
        let (layer, list) = text.split_once(':').unwrap_or((text, ""));
        let mut settings = Self::none(layer.trim());
        if settings.layer.is_empty() {
            return Err(malformed());
        }
        for part in list.split(',').filter(|part| !part.trim().is_empty()) {
            let (option, value) = part.split_once('=').ok_or_else(malformed)?;
            settings.set(option.trim(), value.trim());
        }
        Ok(settings)
    }

    /// Gives an option a value.
    pub fn set(&mut self, option: &str, value: &str) {
        self.values.retain(|(other, _)| other != option);
        self.values.push((option.to_owned(), value.to_owned()));
    }

    /// Adds the options of `other`. If both give an option, the value of `other` counts.
    pub fn merge(&mut self, other: Settings) {
        for (option, value) in other.values {
            self.set(&option, &value);
        }
    }

    /// The layer's name.
    #[must_use]
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// Reads an option with `parse`, if it is given.
    ///
    /// # Errors
    /// The value cannot be read.
    pub fn read<T>(
        &mut self,
        option: &'static str,
        value: &mut T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<(), SettingError> {
        self.known.push(option);
        let Some(at) = self.values.iter().position(|(name, _)| name == option) else {
            return Ok(());
        };
        let (option, text) = self.values.remove(at);
        let layer = || self.layer.clone();
        *value =
            parse(&text).map_err(|why| SettingError::BadValue { layer: layer(), option, why })?;
        Ok(())
    }

    /// A whole number.
    ///
    /// # Errors
    /// The value is no number, or too large.
    pub fn number<T: FromStr>(
        &mut self,
        option: &'static str,
        value: &mut T,
    ) -> Result<(), SettingError> {
        self.read(option, value, |text| {
            text.parse().map_err(|_| format!("{text:?} is not a whole number in range"))
        })
    }

    /// A count such as `20k`; 0 for no limit.
    ///
    /// # Errors
    /// The value is no count.
    pub fn count(&mut self, option: &'static str, value: &mut u64) -> Result<(), SettingError> {
        self.read(option, value, fieldstone_units::parse_count)
    }

    /// A size in bytes, such as `64M`.
    ///
    /// # Errors
    /// The value is no size.
    pub fn size(&mut self, option: &'static str, value: &mut u64) -> Result<(), SettingError> {
        self.read(option, value, fieldstone_units::parse_size)
    }

    /// A size in bytes below 4 GiB.
    ///
    /// # Errors
    /// The value is no size, or too large.
    pub fn small_size(
        &mut self,
        option: &'static str,
        value: &mut u32,
    ) -> Result<(), SettingError> {
        self.read(option, value, |text| {
            let bytes = fieldstone_units::parse_size(text)?;
            u32::try_from(bytes).map_err(|_| format!("{text:?} is not below 4 GiB"))
        })
    }

    /// A duration such as `10ms`.
    ///
    /// # Errors
    /// The value is no duration.
    pub fn duration(
        &mut self,
        option: &'static str,
        value: &mut Nanos,
    ) -> Result<(), SettingError> {
        self.read(option, value, |text| fieldstone_units::parse_duration_ns(text).map(Nanos))
    }

    /// One of several words.
    ///
    /// # Errors
    /// The value is none of the words.
    pub fn choice<T: Copy>(
        &mut self,
        option: &'static str,
        value: &mut T,
        choices: &[(&str, T)],
    ) -> Result<(), SettingError> {
        self.read(option, value, |text| {
            let found = choices.iter().find(|(word, _)| *word == text);
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let wrong = || format!("{text:?} is none of {}", words.join(", "));
            found.map(|(_, value)| *value).ok_or_else(wrong)
        })
    }

    /// Checks that the layer has asked for every option.
    ///
    /// # Errors
    /// An option is left that the layer does not know.
    pub fn finish(self) -> Result<(), SettingError> {
        let Some((option, _)) = self.values.into_iter().next() else { return Ok(()) };
        let known = match self.known[..] {
            [] => "none".to_owned(),
            _ => self.known.join(", "),
        };
        Err(SettingError::UnknownOption { layer: self.layer, option, known })
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.layer)?;
        for (index, (option, value)) in self.values.iter().enumerate() {
            let mark = if index == 0 { ':' } else { ',' };
            write!(f, "{mark}{option}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_named() {
        let mut settings = Settings::parse("cache: size=64M ,policy=off,count=5").unwrap();
        assert_eq!(settings.to_string(), "cache:size=64M,policy=off,count=5");
        let (mut size, mut on, mut wait) = (0, true, Nanos(7));
        settings.size("size", &mut size).unwrap();
        settings.choice("policy", &mut on, &[("on", true), ("off", false)]).unwrap();
        settings.duration("wait", &mut wait).unwrap();
        assert_eq!((size, on, wait), (64 << 20, false, Nanos(7)));
        let error = settings.finish().unwrap_err().to_string();
        assert_eq!(error, "the layer cache has no option \"count\"; it has size, policy, wait");
    }

    #[test]
    fn bad_text_and_values_are_refused() {
        for text in ["", ":a=1", "x:a", "x:a=1,b"] {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
        let mut settings = Settings::parse("x:a=1,a=much").unwrap();
        let error = settings.number::<u32>("a", &mut 0).unwrap_err().to_string();
        assert_eq!(error, "x: a: \"much\" is not a whole number in range");
    }
}
