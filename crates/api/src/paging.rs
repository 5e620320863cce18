//! Pages of lists that live in several shards. A cursor is opaque to callers: the shard, and a place in it.
//!
//! A page may be short, even empty, with a cursor: only so much is looked at in one request. The end is where there is none.

use base64ct::{Base64UrlUnpadded, Encoding};
use schemars::JsonSchema;
use serde::Serialize;

use crate::problem::Problem;

pub const LIMIT_DEFAULT: usize = 100;
pub const LIMIT_MAX: usize = 1000;
/// Visits of shards in one request; each looks at 20,000 sessions at most.
pub const VISITS_MAX: usize = 64;

/// A part of a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Where to go on: in which shard, and where there (empty: from the beginning).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub shard: u16,
    pub within: Vec<u8>,
}

impl Place {
    pub fn slot(shard: u16, slot: u32) -> Place {
        Place {
            shard,
            within: slot.to_be_bytes().into(),
        }
    }

    /// The session slot that `slot` put in; 0 at the beginning of a shard.
    pub fn to_slot(&self) -> Result<u32, Problem> {
        match (<[u8; 4]>::try_from(&*self.within), self.within.is_empty()) {
            (Ok(bytes), _) => Ok(u32::from_be_bytes(bytes)),
            (Err(_), true) => Ok(0),
            (Err(_), false) => Err(malformed()),
        }
    }

    pub fn parse(text: Option<&str>) -> Result<Place, Problem> {
        let Some(text) = text else { return Ok(Place::default()) };
        let bytes = Base64UrlUnpadded::decode_vec(text).map_err(|_| malformed())?;
        let (shard, within) = bytes.split_first_chunk::<2>().ok_or_else(malformed)?;
        Ok(Place {
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

pub fn malformed() -> Problem {
    Problem::bad_request("this cursor did not come from here").at("cursor")
}

pub fn limit(wanted: Option<usize>) -> Result<usize, Problem> {
    match wanted.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(Problem::bad_request("the limit is out of range")
            .at("limit")
            .expected(format!("1 to {LIMIT_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_being_a_cursor() {
        for place in [
            Place::default(),
            Place::slot(3, 70_000),
            Place {
                shard: 1,
                within: b"a\0b".to_vec(),
            },
        ] {
            assert_eq!(Place::parse(Some(&place.to_text())).unwrap(), place);
        }
        assert_eq!(Place::slot(3, 70_000).to_slot().unwrap(), 70_000);
        assert_eq!(Place::parse(None).unwrap().to_slot().unwrap(), 0);
    }

    #[test]
    fn made_up_cursors_and_limits_are_refused() {
        for text in ["", "!", "AA", "AAAAA AAA"] {
            assert!(Place::parse(Some(text)).is_err(), "{text}");
        }
        assert!(
            Place {
                shard: 0,
                within: vec![1]
            }
            .to_slot()
            .is_err()
        );
        assert!(limit(Some(0)).is_err() && limit(Some(1001)).is_err());
        assert_eq!(limit(None).unwrap(), 100);
    }
}
