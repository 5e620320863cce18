//! The error of a function, and suggestions for misspelled names.

use std::borrow::Cow;

/// The error of a function or operator. The caller adds the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionError {
    pub message: Cow<'static, str>,
    pub is_limit: bool,
}

impl FunctionError {
    /// A limit of the rule was exceeded.
    pub fn limit(message: impl Into<Cow<'static, str>>) -> FunctionError {
        FunctionError {
            message: message.into(),
            is_limit: true,
        }
    }
}

impl From<&'static str> for FunctionError {
    fn from(message: &'static str) -> FunctionError {
        FunctionError {
            message: Cow::Borrowed(message),
            is_limit: false,
        }
    }
}

impl From<String> for FunctionError {
    fn from(message: String) -> FunctionError {
        FunctionError {
            message: Cow::Owned(message),
            is_limit: false,
        }
    }
}

/// Returns the most similar name in `names`, if it differs in only a few letters.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let allowed = (word.len() / 3).clamp(1, 3);
    names
        .map(|name| (strsim::osa_distance(&word, name), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}
