//! Types of option values: how each is read from TOML and from text, checked and printed.
//!
//! A type that implements `OptionValue` can be used in an option definition; no other file in this directory knows
//! types. Values from the environment, from `--set` and from the `default` of a definition are text. Values from a
//! file are TOML. A value from a file must have the right type (`"5"` is not an integer); text has only one form for
//! all types.

use std::path::PathBuf;

/// The value of a key in one layer.
#[derive(Clone, Debug, PartialEq)]
pub enum RawOptionValue {
    Toml(toml::Value),
    Text(String),
}

/// Why a value is rejected. The caller adds the found and the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reject {
    Mismatch,
    WithReason(String),
}

pub trait OptionValue: Sized {
    /// Never shown once set.
    const IS_SECRET: bool = false;

    /// The type as the reference page names it: "duration", "integer".
    fn type_name() -> String;

    /// Describes the expected value in errors, with an example: "a duration such as \"15s\" or \"2h\"".
    fn expected() -> String;

    /// Values that are words of their own; for completion.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }

    /// Whether there is no value besides the choices.
    fn has_all_choices() -> bool {
        !Self::choices().is_empty()
    }

    /// A value for the example of a configuration file, where an option has no default.
    fn example() -> Option<toml::Value> {
        None
    }

    fn from_text(text: &str) -> Result<Self, Reject>;

    fn from_toml(value: &toml::Value) -> Result<Self, Reject> {
        match value {
            toml::Value::String(text) => Self::from_text(text),
            _ => Err(Reject::Mismatch),
        }
    }

    /// The value as `config show` prints it and as `from_toml` reads it back (secrets excepted).
    fn to_toml(&self) -> toml::Value;

    /// Types without an order take no range.
    fn is_within(&self, _min: &Self, _max: &Self) -> bool {
        true
    }

    fn from_raw(raw: &RawOptionValue) -> Result<Self, Reject> {
        match raw {
            RawOptionValue::Toml(value) => Self::from_toml(value),
            RawOptionValue::Text(text) => Self::from_text(text),
        }
    }
}

/// The value in words, for error messages: `integer 5`, `string "abc"`.
pub fn describe(raw: &RawOptionValue) -> String {
    match raw {
        RawOptionValue::Text(text) => format!("\"{text}\""),
        RawOptionValue::Toml(toml::Value::Array(_)) => "an array".into(),
        RawOptionValue::Toml(toml::Value::Table(_)) => "a table".into(),
        RawOptionValue::Toml(value) => format!("{} {value}", value.type_str()),
    }
}

impl OptionValue for bool {
    fn type_name() -> String {
        "boolean".into()
    }

    fn expected() -> String {
        "true or false".into()
    }

    fn choices() -> Vec<&'static str> {
        vec!["true", "false"]
    }

    fn from_text(text: &str) -> Result<bool, Reject> {
        text.parse().map_err(|_| Reject::Mismatch)
    }

    fn from_toml(value: &toml::Value) -> Result<bool, Reject> {
        value.as_bool().ok_or(Reject::Mismatch)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Boolean(*self)
    }
}

macro_rules! integer_value {
    ($($integer:ty),*) => {$(
        impl OptionValue for $integer {
            fn type_name() -> String {
                "integer".into()
            }

            fn expected() -> String {
                "an integer".into()
            }

            fn from_text(text: &str) -> Result<$integer, Reject> {
                text.replace('_', "").parse().map_err(|_| Reject::Mismatch)
            }

            fn from_toml(value: &toml::Value) -> Result<$integer, Reject> {
                let integer = value.as_integer().ok_or(Reject::Mismatch)?;
                integer.try_into().map_err(|_| Reject::Mismatch)
            }

            fn to_toml(&self) -> toml::Value {
                toml::Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }

            fn is_within(&self, min: &$integer, max: &$integer) -> bool {
                (min..=max).contains(&self)
            }
        }
    )*};
}

integer_value!(u8, u16, u32, u64);

impl OptionValue for f64 {
    fn type_name() -> String {
        "number".into()
    }

    fn expected() -> String {
        "a number".into()
    }

    fn from_text(text: &str) -> Result<f64, Reject> {
        text.parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .ok_or(Reject::Mismatch)
    }

    fn from_toml(value: &toml::Value) -> Result<f64, Reject> {
        match value {
            toml::Value::Float(number) if number.is_finite() => Ok(*number),
            toml::Value::Integer(number) => Ok(*number as f64),
            _ => Err(Reject::Mismatch),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Float(*self)
    }

    fn is_within(&self, min: &f64, max: &f64) -> bool {
        (min..=max).contains(&self)
    }
}

impl OptionValue for String {
    fn type_name() -> String {
        "string".into()
    }

    fn expected() -> String {
        "a string".into()
    }

    fn from_text(text: &str) -> Result<String, Reject> {
        Ok(text.into())
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.clone())
    }
}

impl OptionValue for PathBuf {
    fn type_name() -> String {
        "path".into()
    }

    fn expected() -> String {
        "a path".into()
    }

    fn from_text(text: &str) -> Result<PathBuf, Reject> {
        if text.is_empty() {
            Err(Reject::Mismatch)
        } else {
            Ok(text.into())
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.display().to_string())
    }
}

impl OptionValue for mqtt::QoS {
    fn type_name() -> String {
        "QoS".into()
    }

    fn expected() -> String {
        "0, 1 or 2".into()
    }

    fn choices() -> Vec<&'static str> {
        vec!["0", "1", "2"]
    }

    fn from_text(text: &str) -> Result<mqtt::QoS, Reject> {
        text.parse().ok().and_then(mqtt::QoS::from_bits).ok_or(Reject::Mismatch)
    }

    fn from_toml(value: &toml::Value) -> Result<mqtt::QoS, Reject> {
        let bits = value.as_integer().and_then(|integer| u8::try_from(integer).ok());
        bits.and_then(mqtt::QoS::from_bits).ok_or(Reject::Mismatch)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Integer(*self as i64)
    }
}

/// Text that stands for "no value" in one of the three ways below.
macro_rules! optional_value {
    ($wrapper:ident, $word:literal, $words:pat, $phrase:literal) => {
        impl<T: OptionValue> OptionValue for $wrapper<T> {
            const IS_SECRET: bool = T::IS_SECRET;

            fn type_name() -> String {
                format!(concat!("{}", $phrase), T::type_name())
            }

            fn expected() -> String {
                format!(concat!("{}", $phrase), T::expected())
            }

            fn choices() -> Vec<&'static str> {
                let mut choices = T::choices();
                choices.push($word);
                choices
            }

            fn has_all_choices() -> bool {
                T::has_all_choices()
            }

            fn from_text(text: &str) -> Result<$wrapper<T>, Reject> {
                match text {
                    $words => Ok($wrapper(None)),
                    _ => T::from_text(text).map(|value| $wrapper(Some(value))),
                }
            }

            fn from_toml(value: &toml::Value) -> Result<$wrapper<T>, Reject> {
                match value {
                    toml::Value::String(text) if matches!(text.as_str(), $words) => Ok($wrapper(None)),
                    _ => T::from_toml(value).map(|value| $wrapper(Some(value))),
                }
            }

            fn to_toml(&self) -> toml::Value {
                match &self.0 {
                    Some(value) => value.to_toml(),
                    None => toml::Value::String($word.into()),
                }
            }

            fn is_within(&self, min: &$wrapper<T>, max: &$wrapper<T>) -> bool {
                match (&self.0, &min.0, &max.0) {
                    (Some(value), Some(min), Some(max)) => value.is_within(min, max),
                    _ => true,
                }
            }
        }
    };
}

/// A bound that can be lifted: a value or "unlimited".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<T>(pub Option<T>);

/// A feature that can be off: a value or "off".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch<T>(pub Option<T>);

/// Something that may not be given at all: a value or "".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unset<T>(pub Option<T>);

optional_value!(Limit, "unlimited", "unlimited" | "infinity", " or \"unlimited\"");
optional_value!(Switch, "off", "off" | "disabled", " or \"off\"");
optional_value!(Unset, "", "", "");

impl<T: OptionValue> OptionValue for Vec<T> {
    fn type_name() -> String {
        format!("list of {}", T::type_name())
    }

    fn expected() -> String {
        format!("a list, each item {}", T::expected())
    }

    /// `a,b` as well as `["a", "b"]`.
    fn from_text(text: &str) -> Result<Vec<T>, Reject> {
        if text.trim_start().starts_with('[') {
            let value = text
                .parse::<toml::Value>()
                .map_err(|error| Reject::WithReason(error.message().to_string()))?;
            return Vec::from_toml(&value);
        }
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(T::from_text)
            .collect()
    }

    fn from_toml(value: &toml::Value) -> Result<Vec<T>, Reject> {
        value
            .as_array()
            .ok_or(Reject::Mismatch)?
            .iter()
            .map(T::from_toml)
            .collect()
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Array(self.iter().map(T::to_toml).collect())
    }
}

/// Declares an enum whose values are words.
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl $crate::config::value::OptionValue for $name {
            fn type_name() -> String {
                "word".into()
            }

            fn expected() -> String {
                let words: Vec<String> = Self::choices().iter().map(|word| format!("\"{word}\"")).collect();
                let (last, others) = words.split_last().expect("the macro takes at least one variant");
                if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) }
            }

            fn choices() -> Vec<&'static str> {
                vec![$($word),+]
            }

            fn from_text(text: &str) -> Result<$name, $crate::config::value::Reject> {
                match text {
                    $($word => Ok($name::$variant),)+
                    _ => Err($crate::config::value::Reject::Mismatch),
                }
            }

            fn to_toml(&self) -> toml::Value {
                toml::Value::String(self.word().into())
            }
        }
    };
}
pub(crate) use choice;
