"""What a server must know to see the images of clients whose extractor is private: the pages' tables, and blocks made of them."""
