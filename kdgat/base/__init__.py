"""What every part of kdgat stands on: configuration, files, hashes, processor cores, errors, machine code of kernels.

A base: it imports nothing else of the house.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.base.configuration import Config as Config
    from kdgat.base.configuration import ConfigurationError as ConfigurationError
    from kdgat.base.configuration import unknown_key_text as unknown_key_text
    from kdgat.base.configuration import validate_config as validate_config
    from kdgat.base.cores import num_usable_cores as num_usable_cores
    from kdgat.base.errors import UserError as UserError
    from kdgat.base.files import sha256_of_file as sha256_of_file
    from kdgat.base.files import sync_to_disk as sync_to_disk
    from kdgat.base.files import write_bytes_atomically as write_bytes_atomically
    from kdgat.base.files import write_json_atomically as write_json_atomically
    from kdgat.base.place import check_file as check_file
    from kdgat.base.place import check_folder as check_folder
    from kdgat.base.polling import wait_until as wait_until
    from kdgat.base.text import MIB as MIB
    from kdgat.base.text import describe_bytes as describe_bytes
    from kdgat.base.text import say as say

__all__, __getattr__, __dir__ = lazy_names(__name__)
