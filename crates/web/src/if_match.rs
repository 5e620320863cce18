//! Detects conflicting changes: the entity tag of a definition, and the header `If-Match` of a change [RFC 9110, 8.8.3
//! and 13.1.1]. Without the header, a change always applies.
//!
//! A tag is a hash of an operator's definition, as the API shows it. It includes neither the state nor secrets; a
//! change leaves secrets alone unless it contains new ones. A definition that returns to an earlier version has the
//! earlier tag.

use std::convert::Infallible;
use std::fmt::Write;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::problem::HttpProblem;

/// Bytes of the hash in a tag.
const BYTES: usize = 12;

/// An entity tag including its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityTag(String);

impl EntityTag {
    pub fn of(defined: &impl Serialize) -> EntityTag {
        let text = serde_json::to_vec(defined).expect("a view can be serialized");
        let mut tag = String::from("\"");
        for byte in &Sha256::digest(&text)[..BYTES] {
            write!(tag, "{byte:02x}").expect("writing to a String cannot fail");
        }
        tag.push('"');
        EntityTag(tag)
    }
}

/// A body and its tag.
pub struct Tagged<T>(pub EntityTag, pub T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let Tagged(EntityTag(tag), body) = self;
        ([(header::ETAG, tag)], Json(body)).into_response()
    }
}

/// Tags that a change expects; `None` without the header.
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

    /// Whether the change may proceed. `present` is the current tag, `None` if the definition does not exist. A weak
    /// tag never matches.
    pub fn matches(&self, present: Option<&EntityTag>) -> bool {
        match (&self.0, present) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(expected), Some(EntityTag(present))) => expected.iter().any(|one| one == "*" || one == present),
        }
    }
}

/// The error of a conflicting change. `what` is a noun phrase with article and name.
pub fn changed(what: &str) -> HttpProblem {
    let detail =
        format!("{what} was changed or deleted by another request: read it again, or omit If-Match to overwrite it");
    HttpProblem::new(
        StatusCode::PRECONDITION_FAILED,
        "precondition-failed",
        "Changed by another request",
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
    fn change_applies_only_to_the_expected_tag() {
        let (present, other) = (EntityTag::of(&["a"]), EntityTag::of(&["b"]));
        assert_ne!(present, other);
        assert_eq!(present, EntityTag::of(&["a"]));
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
            let found = with(values).matches(is_there.then_some(&present));
            assert_eq!(found, expected, "{values:?} {is_there}");
        }
    }
}
