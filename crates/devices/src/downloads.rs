//! Packages that devices are fetching, chunk by chunk. What was said at the beginning holds until the end: a device may say the size of chunks
//! once, and what it gets is of one package, though it is to have another one by now.

use std::sync::Mutex;

use hashbrown::HashMap;
use platform::decode::OtaKind;
use platform::ids::{OtaPackageId, Uuid};

use crate::hub::lock;

/// Of more all are forgotten: they go on with what each request says.
const DOWNLOADS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// Of the device; another one begins anew.
    pub connection: u64,
    /// As the device numbers it.
    pub request: i32,
    /// Of chunks, in bytes; 0: all of it.
    pub size: usize,
    pub package: OtaPackageId,
}

/// The last one of each device and kind.
#[derive(Default)]
pub struct Downloads(Mutex<HashMap<(Uuid, OtaKind), Download, foldhash::fast::RandomState>>);

impl Downloads {
    pub fn find(&self, of: (Uuid, OtaKind), connection: u64, request: i32) -> Option<Download> {
        let found = lock(&self.0).get(&of).copied();
        found.filter(|known| (known.connection, known.request) == (connection, request))
    }

    pub fn put(&self, of: (Uuid, OtaKind), download: Download) {
        let mut all = lock(&self.0);
        if all.len() >= DOWNLOADS_MAX && !all.contains_key(&of) {
            all.clear();
        }
        all.insert(of, download);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_ends_with_its_connection_and_with_the_next_request() {
        let downloads = Downloads::default();
        let of = (Uuid([1; 16]), OtaKind::Firmware);
        let download = Download {
            connection: 1,
            request: 7,
            size: 20,
            package: OtaPackageId(Uuid([2; 16])),
        };
        downloads.put(of, download);
        assert_eq!(downloads.find(of, 1, 7), Some(download));
        assert_eq!(downloads.find(of, 2, 7), None);
        assert_eq!(downloads.find(of, 1, 8), None);
        assert_eq!(downloads.find((of.0, OtaKind::Software), 1, 7), None);
        for n in 0..DOWNLOADS_MAX as u128 {
            downloads.put((Uuid((n << 8).to_be_bytes()), OtaKind::Software), download);
        }
        assert_eq!(downloads.find(of, 1, 7), None);
        assert_eq!(lock(&downloads.0).len(), 1);
    }
}
