//! Who changes what somebody else has changed meanwhile is told so: the entity tag of what is shown, and `If-Match` of a change
//! [RFC 9110, 8.8.3 and 13.1.1]. Without the header a change holds whatever is there.
//!
//! A tag is a hash of what operators define, as it is shown, not of how it does and not of a secret, which a change leaves alone unless
//! it brings another one. What has become again what it was has its old tag.

use std::convert::Infallible;
use std::fmt::Write;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// Of the hash, in the tag.
const BYTES: usize = 12;

/// An entity tag with its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    pub fn of(defined: &impl Serialize) -> Tag {
        let text = serde_json::to_vec(defined).expect("what is shown can be written");
        let mut tag = String::from("\"");
        for byte in &Sha256::digest(&text)[..BYTES] {
            write!(tag, "{byte:02x}").expect("a String takes everything");
        }
        tag.push('"');
        Tag(tag)
    }
}

/// A body with its tag.
pub struct Tagged<T>(pub Tag, pub T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let Tagged(Tag(tag), body) = self;
        ([(header::ETAG, tag)], Json(body)).into_response()
    }
}

/// What a change expects to be there; nothing, if it does not say.
pub struct IfMatch(Option<Vec<String>>);

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<IfMatch, Infallible> {
        Ok(IfMatch::of(&parts.headers))
    }
}

impl IfMatch {
    fn of(headers: &HeaderMap) -> IfMatch {
        let values = headers.get_all(header::IF_MATCH);
        let tags = values.iter().flat_map(|value| {
            let text = value.to_str().unwrap_or_default();
            text.split(',').map(|tag| tag.trim().to_owned())
        });
        IfMatch(headers.contains_key(header::IF_MATCH).then(|| tags.collect()))
    }

    /// Whether this may be changed, of which `None` is there now. A weak tag is none that could match.
    pub fn holds(&self, present: Option<&Tag>) -> bool {
        match (&self.0, present) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(expected), Some(Tag(present))) => expected.iter().any(|one| one == "*" || one == present),
        }
    }
}

/// The refusal; `what` with its article and its name.
pub fn changed(what: &str) -> Problem {
    let detail = format!(
        "{what} was changed meanwhile, or deleted: read it again, or leave out If-Match to save over what is there"
    );
    Problem::new(
        StatusCode::PRECONDITION_FAILED,
        "changed-meanwhile",
        "It was changed meanwhile",
        detail,
    )
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn with(values: &[&'static str]) -> IfMatch {
        let pairs = values
            .iter()
            .map(|value| (header::IF_MATCH, HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        IfMatch::of(&headers)
    }

    #[test]
    fn a_change_holds_for_the_tag_that_it_was_made_for() {
        let (present, other) = (Tag::of(&["a"]), Tag::of(&["b"]));
        assert_ne!(present, other);
        assert_eq!(present, Tag::of(&["a"]));
        let quoted: &'static str = Box::leak(present.0.clone().into_boxed_str());
        let weak: &'static str = Box::leak(format!("W/{quoted}").into_boxed_str());
        let listed: &'static str = Box::leak(format!("\"x\", {quoted}").into_boxed_str());
        for (values, is_there, expected) in [
            (&[][..], true, true),
            (&[], false, true),
            (&[quoted], true, true),
            (&[quoted], false, false),
            (&["\"x\""], true, false),
            (&[""], true, false),
            (&[weak], true, false),
            (&[listed], true, true),
            (&["\"x\"", quoted], true, true),
            (&["*"], true, true),
            (&["*"], false, false),
        ] {
            let found = with(values).holds(is_there.then_some(&present));
            assert_eq!(found, expected, "{values:?} {is_there}");
        }
    }
}
