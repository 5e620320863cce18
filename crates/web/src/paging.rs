//! Pages of lists that span several shards. A cursor is opaque to clients: a shard and a position in it.
//!
//! A request examines a limited number of entries. So a page may be short or empty and still have a cursor. The last
//! page has none.

use axum::Json;
use base64ct::{Base64UrlUnpadded, Encoding};
use schemars::JsonSchema;
use serde::Serialize;

use crate::problem::HttpProblem;

pub const LIMIT_DEFAULT: usize = 100;
pub const LIMIT_MAX: usize = 1000;
/// Limit of visits to shards per request; each examines at most 20,000 sessions.
pub const VISITS_MAX: usize = 64;

/// A page of a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Value of `cursor` for the next page; absent on the last page. A page may be short and still have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Position of a cursor: the shard and the position in it (empty: its start).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CursorPosition {
    pub shard: u16,
    pub within: Vec<u8>,
}

impl CursorPosition {
    pub fn number(shard: u16, number: u32) -> CursorPosition {
        CursorPosition {
            shard,
            within: number.to_be_bytes().into(),
        }
    }

    /// Returns the number; 0 at the start of a shard.
    pub fn to_number(&self) -> Result<u32, HttpProblem> {
        match (<[u8; 4]>::try_from(&*self.within), self.within.is_empty()) {
            (Ok(bytes), _) => Ok(u32::from_be_bytes(bytes)),
            (Err(_), true) => Ok(0),
            (Err(_), false) => Err(malformed()),
        }
    }

    pub fn parse(text: Option<&str>) -> Result<CursorPosition, HttpProblem> {
        let Some(text) = text else {
            return Ok(CursorPosition::default());
        };
        let bytes = Base64UrlUnpadded::decode_vec(text).map_err(|_| malformed())?;
        let (shard, within) = bytes.split_first_chunk::<2>().ok_or_else(malformed)?;
        Ok(CursorPosition {
            shard: u16::from_be_bytes(*shard),
            within: within.into(),
        })
    }

    pub fn to_text(&self) -> String {
        let mut bytes = self.shard.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.within);
        Base64UrlUnpadded::encode_string(&bytes)
    }
}

/// Reads a page from one shard after another. `read` gets the position and the number of missing items. It returns
/// items and the position after them in the same shard, if the shard has more.
pub async fn collect<T, F>(
    shards: u16,
    cursor: Option<&str>,
    limit: usize,
    read: impl Fn(CursorPosition, usize) -> F,
) -> Result<Json<Page<T>>, HttpProblem>
where
    F: Future<Output = Result<(Vec<T>, Option<Vec<u8>>), HttpProblem>>,
{
    let mut place = CursorPosition::parse(cursor)?;
    let mut items = Vec::new();
    for _ in 0..VISITS_MAX {
        let shard = place.shard;
        if shard >= shards {
            return Ok(Json(Page { items, cursor: None }));
        }
        if items.len() >= limit {
            break;
        }
        let (found, next) = read(place, limit - items.len()).await?;
        items.extend(found);
        place = CursorPosition {
            shard: shard + u16::from(next.is_none()),
            within: next.unwrap_or_default(),
        };
    }
    Ok(Json(Page {
        items,
        cursor: Some(place.to_text()),
    }))
}

pub fn malformed() -> HttpProblem {
    HttpProblem::bad_request("the cursor is invalid: use the `cursor` of the previous page").at("cursor")
}

pub fn limit(wanted: Option<usize>) -> Result<usize, HttpProblem> {
    match wanted.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(HttpProblem::bad_request("the limit is out of range")
            .at("limit")
            .expected(format!("1 to {LIMIT_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_round_trips_through_a_cursor() {
        for place in [
            CursorPosition::default(),
            CursorPosition::number(3, 70_000),
            CursorPosition {
                shard: 1,
                within: b"a\0b".to_vec(),
            },
        ] {
            assert_eq!(CursorPosition::parse(Some(&place.to_text())).unwrap(), place);
        }
        assert_eq!(CursorPosition::number(3, 70_000).to_number().unwrap(), 70_000);
        assert_eq!(CursorPosition::parse(None).unwrap().to_number().unwrap(), 0);
    }

    #[test]
    fn invalid_cursors_and_limits_are_rejected() {
        for text in ["", "!", "AA", "AAAAA AAA"] {
            assert!(CursorPosition::parse(Some(text)).is_err(), "{text}");
        }
        assert!(
            CursorPosition {
                shard: 0,
                within: vec![1]
            }
            .to_number()
            .is_err()
        );
        assert!(limit(Some(0)).is_err() && limit(Some(1001)).is_err());
        assert_eq!(limit(None).unwrap(), 100);
    }
}
