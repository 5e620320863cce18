//! Packages that devices are downloading chunk by chunk. The chunk size and package of the first request stay in
//! force until the last: a device may send the size only once, and may be assigned another package during the
//! download.

use std::sync::Mutex;

use hashbrown::HashMap;
use platform::decode::OtaKind;
use platform::ids::{OtaPackageId, Uuid};

use crate::mutex::lock;
use crate::sessions::ConnectionNumber;

/// When full, all entries are removed. Downloads then continue with the values of each request.
const DOWNLOADS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// Connection of the device. A new connection begins a new download.
    pub connection: ConnectionNumber,
    /// The device's request number.
    pub request: i32,
    /// Chunk size in bytes; 0 for the whole package.
    pub size: usize,
    pub package: OtaPackageId,
}

/// The last download per device and kind.
#[derive(Default)]
pub struct Downloads(Mutex<HashMap<(Uuid, OtaKind), Download, foldhash::fast::RandomState>>);

impl Downloads {
    pub fn find(&self, of: (Uuid, OtaKind), connection: ConnectionNumber, request: i32) -> Option<Download> {
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
    fn download_ends_with_its_connection_or_next_request() {
        let downloads = Downloads::default();
        let of = (Uuid([1; 16]), OtaKind::Firmware);
        let download = Download {
            connection: ConnectionNumber(1),
            request: 7,
            size: 20,
            package: OtaPackageId(Uuid([2; 16])),
        };
        downloads.put(of, download);
        assert_eq!(downloads.find(of, ConnectionNumber(1), 7), Some(download));
        assert_eq!(downloads.find(of, ConnectionNumber(2), 7), None);
        assert_eq!(downloads.find(of, ConnectionNumber(1), 8), None);
        assert_eq!(downloads.find((of.0, OtaKind::Software), ConnectionNumber(1), 7), None);
        for n in 0..DOWNLOADS_MAX as u128 {
            downloads.put((Uuid((n << 8).to_be_bytes()), OtaKind::Software), download);
        }
        assert_eq!(downloads.find(of, ConnectionNumber(1), 7), None);
        assert_eq!(lock(&downloads.0).len(), 1);
    }
}
