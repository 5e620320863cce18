//! A long history as JSON that is written while the client reads it. A point is freed when it is written, so the answer
//! needs the memory of the points, and that only until the client has read them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use timeseries::{PointValue, TimedValue};
use web::answer_memory::AnswerBytes;

use super::values::point_json;

/// Smallest size of a piece, except of the last one.
const PIECE_BYTES: usize = 64 << 10;

/// Returns the memory of points.
pub fn memory_of(points: &[TimedValue]) -> usize {
    let texts = points.iter().map(|point| match &point.value {
        PointValue::String(text) | PointValue::Json(text) => text.len(),
        PointValue::Bool(_) | PointValue::Long(_) | PointValue::Double(_) => 0,
    });
    size_of_val(points) + texts.sum::<usize>()
}

/// An object with a list of points per key.
pub struct HistoryAnswer {
    keys: vec::IntoIter<(Box<str>, Vec<TimedValue>)>,
    /// Remaining points of the current key.
    points: Option<vec::IntoIter<TimedValue>>,
    /// Separates the next key or point from the text before it.
    separator: &'static str,
    is_strict: bool,
    has_ended: bool,
}

impl HistoryAnswer {
    pub fn new(keys: Vec<(Box<str>, Vec<TimedValue>)>, is_strict: bool) -> HistoryAnswer {
        HistoryAnswer {
            keys: keys.into_iter(),
            points: None,
            separator: "{",
            is_strict,
            has_ended: false,
        }
    }

    /// `bytes`: memory of the points.
    pub fn into_response(self, bytes: usize) -> Response {
        let mut response = ([(header::CONTENT_TYPE, "application/json")], Body::new(self)).into_response();
        response.extensions_mut().insert(AnswerBytes(bytes));
        response
    }

    /// `None`: the text is complete.
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        let mut piece = Vec::new();
        while !self.has_ended && piece.len() < PIECE_BYTES {
            self.write_next(&mut piece);
        }
        (!piece.is_empty()).then_some(piece)
    }

    fn write_next(&mut self, piece: &mut Vec<u8>) {
        const VALID: &str = "strings and numbers serialize";
        if let Some(points) = &mut self.points {
            match points.next() {
                Some(point) => {
                    piece.extend_from_slice(self.separator.as_bytes());
                    self.separator = ",";
                    serde_json::to_writer(piece, &point_json(&point, self.is_strict)).expect(VALID);
                }
                None => {
                    piece.push(b']');
                    self.points = None;
                    self.separator = ",";
                }
            }
            return;
        }
        match self.keys.next() {
            Some((key, points)) => {
                piece.extend_from_slice(self.separator.as_bytes());
                serde_json::to_writer(&mut *piece, &key).expect(VALID);
                piece.extend_from_slice(b":[");
                self.points = Some(points.into_iter());
                self.separator = "";
            }
            None => {
                piece.extend_from_slice(if self.separator == "{" { b"{}" } else { b"}" });
                self.has_ended = true;
            }
        }
    }
}

impl hyper::body::Body for HistoryAnswer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next_piece().map(|piece| Ok(Frame::data(piece.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn points(values: &[PointValue]) -> Vec<TimedValue> {
        let timed = values.iter().enumerate().map(|(index, value)| TimedValue {
            ts_ms: index as i64,
            value: value.clone(),
        });
        timed.collect()
    }

    fn text(keys: Vec<(Box<str>, Vec<TimedValue>)>) -> (usize, Value) {
        let mut answer = HistoryAnswer::new(keys, true);
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| answer.next_piece()).collect();
        let value = serde_json::from_slice(&pieces.concat()).unwrap();
        (pieces.len(), value)
    }

    #[test]
    fn pieces_are_one_valid_text() {
        assert_eq!(text(Vec::new()), (1, json!({})));
        let long = "x".repeat(PIECE_BYTES);
        let keys = vec![
            (
                "a\"".into(),
                points(&[PointValue::Long(1), PointValue::String(long.clone().into())]),
            ),
            ("none".into(), Vec::new()),
            (
                "b".into(),
                points(&[PointValue::Bool(true), PointValue::Json("[2]".into())]),
            ),
        ];
        let expected = json!({
            "a\"": [{"ts": 0, "value": 1}, {"ts": 1, "value": long}],
            "none": [],
            "b": [{"ts": 0, "value": true}, {"ts": 1, "value": [2]}],
        });
        assert_eq!(text(keys), (2, expected));
    }
}
