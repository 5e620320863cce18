//! Reads JSON bodies: limits their size and time, rejects unknown fields, and names the invalid field in the error.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use input_errors::{nearest, plain};
use serde::de::DeserializeOwned;

use crate::audit::SentBody;
use crate::limits::BodyLimits;
use crate::problem::HttpProblem;
use crate::strict::Strict;

/// A JSON body. Errors become a `HttpProblem`.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, HttpProblem> {
        check_content_type(request.headers())?;
        let limits = BodyLimits::of(request.extensions());
        let sent = request.extensions().get::<SentBody>().cloned();
        let bytes = read(request.into_body(), limits).await?;
        if let Some(sent) = sent {
            sent.store(&bytes);
        }
        parse(&bytes).map(Json)
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), HttpProblem> {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = value.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    // Browsers send JSON across origins only after a preflight, which the server rejects. So this check also prevents
    // cross-site requests.
    let detail = "the body must be JSON with `Content-Type: application/json`";
    Err(HttpProblem::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail.into()).expected("application/json"))
}

pub async fn read(body: Body, limits: BodyLimits) -> Result<axum::body::Bytes, HttpProblem> {
    match tokio::time::timeout(limits.timeout, to_bytes(body, limits.bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_over_limit(&error) => {
            let detail = format!("the body is larger than {} bytes", limits.bytes);
            Err(HttpProblem::of_status(StatusCode::PAYLOAD_TOO_LARGE, detail))
        }
        Ok(Err(_)) => Err(HttpProblem::bad_request("cannot read the body")),
        Err(_) => Err(HttpProblem::of_status(
            StatusCode::REQUEST_TIMEOUT,
            "the body was not received in time".into(),
        )),
    }
}

/// axum exposes this condition only as the text of the innermost error. No other error of `to_bytes` has this text.
fn is_over_limit(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit exceeded") {
            return true;
        }
        cause = error.source();
    }
    false
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HttpProblem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(Strict(&mut deserializer)).map_err(|error| {
        let path = error.path().to_string();
        describe(&error.into_inner().to_string(), &path)
    })?;
    deserializer
        .end()
        .map_err(|error| HttpProblem::bad_request(format!("unexpected text after the JSON value: {error}")))?;
    Ok(value)
}

/// Converts an error message of serde. Only the message contains the unknown and the expected fields.
pub fn describe(message: &str, path: &str) -> HttpProblem {
    let at = if path == "." { "" } else { path };
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let is_unknown = message.starts_with("unknown field") || message.starts_with("unknown variant");
    let Some((&word, known)) = quoted.split_first().filter(|_| is_unknown) else {
        let problem = HttpProblem::bad_request(plain(message));
        return if at.is_empty() { problem } else { problem.at(at) };
    };
    let hint = nearest(word, known.iter().copied()).map(|near| format!("; did you mean `{near}`?"));
    let what = if message.starts_with("unknown field") {
        "field"
    } else {
        "value"
    };
    let detail = format!("unknown {what} `{}`{}", shortened(word), hint.unwrap_or_default());
    // For an unknown field, serde's path already ends with the field.
    let field = if at.is_empty() { word } else { at };
    HttpProblem::bad_request(detail).at(field).expected(known.join(", "))
}

fn shortened(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct OuterBody {
        #[allow(dead_code)]
        topic: String,
        #[serde(default)]
        #[allow(dead_code)]
        list: Vec<InnerBody>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct InnerBody {
        #[allow(dead_code)]
        count: u32,
    }

    fn problem(json: &str) -> (String, Option<String>) {
        let problem = parse::<OuterBody>(json.as_bytes()).unwrap_err();
        (problem.detail, problem.field)
    }

    #[test]
    fn unknown_field_is_named_with_a_suggestion() {
        let (detail, field) = problem(r#"{"topc": "a"}"#);
        assert_eq!(detail, "unknown field `topc`; did you mean `topic`?");
        assert_eq!(field.as_deref(), Some("topc"));
    }

    #[test]
    fn error_contains_the_path_of_the_field() {
        let (detail, field) = problem(r#"{"topic": "a", "list": [{"count": 1}, {"count": "x"}]}"#);
        assert!(
            detail.starts_with("found a string, expected a whole number from 0"),
            "{detail}"
        );
        assert_eq!(field.as_deref(), Some("list[1].count"));
    }

    #[test]
    fn array_in_place_of_an_object_is_rejected() {
        assert!(
            problem(r#"["a", []]"#)
                .0
                .starts_with("found a list, expected an object")
        );
        let (detail, field) = problem(r#"{"topic": "a", "list": [[1]]}"#);
        assert!(detail.starts_with("found a list, expected an object"), "{detail}");
        assert_eq!(field.as_deref(), Some("list[0]"));
    }

    #[test]
    fn invalid_json_and_trailing_text_are_rejected() {
        assert!(problem("{").0.contains("EOF"));
        assert!(problem(r#"{"topic": "a"} x"#).0.contains("after the JSON value"));
    }
}
